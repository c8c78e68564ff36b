from dpaudit.mechanisms import Laplace
from dpaudit.verify import Claim, check

verdict = check(Claim.single(Laplace(scale=2.0, clip_norm=1.0), epsilon=0.5, delta=0.0))
name: str = verdict.epsilon_upper
