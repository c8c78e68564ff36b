"""The canary game: two neighbouring data sets, many models of each, and what their scores prove."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import FEWEST, Audit, operating_points, spent_at
from dpaudit.audit.attacks.control import (
    NO_NOISE_MODELS,
    built_in_control,
    controlled_training,
    piloted,
    run_control,
    takes_noise_factor,
)
from dpaudit.audit.attacks.pilot import Pilot, run_pilot, separation
from dpaudit.audit.power import DRAWS, MODELS, Refutes, models_needed
from dpaudit.audit.score_deciders import curve_test, joint_bound
from dpaudit.audit.trials.engine import Scores, trial_seed
from dpaudit.mechanisms.learning.spec import MinimumSpec
from dpaudit.mechanisms.learning.training import train
from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma
from dpaudit.verify.bounds import JointTest, Tradeoff
from dpaudit.verify.checking import check
from dpaudit.verify.results import CONTROLLED_NOISE, PROMISED_POWER, AttackResult, Control, LowerBound
from dpaudit.verify.upper import upper_curve

METHOD = "joint-test"
SOURCE = "quantile coupling with the least favourable pair of a trade-off curve (verify/bounds/joint_test.py)"
DOUBT = 1.0  # standard deviation by which a loop's scores may lie further apart than they were seen to
_PLAN, _LITTLE = 107, 112  # streams of seeds


@dataclass(frozen=True)
class Design:
    """How a game is going to be played, decided by its pilot.

    Args:
        attack: Its name.
        pilot: What was chosen.
        models: Models per arm.
        control_models: Of the control, to begin with.
        forecast: Of DRAWS draws of normal scores as far apart as the pilot's, in how many half the noise is found.
    """

    attack: str
    pilot: Pilot
    models: int
    control_models: int
    forecast: int

    @property
    def seconds(self) -> float:
        """An estimate for the trials of the control and of the audit, one after another."""
        return self.pilot.seconds / self.pilot.models * 2 * (self.models + self.control_models + NO_NOISE_MODELS)

    @property
    def warning(self) -> str:
        """That silence is likely to say nothing, where that is to be expected; else ""."""
        if self.forecast >= PROMISED_POWER * DRAWS:
            return ""
        return (
            f"{self.attack}: the pilot's scores lie {self.pilot.separation:.2g} standard deviations apart with half of "
            f"the noise, which {self.control_models:,} models per arm would find in {self.forecast} of {DRAWS} audits: "
            "if nothing is refuted, that is likely to say nothing."
        )


def always(audit: Audit) -> bool:
    """Whatever is audited."""
    return True


@dataclass(frozen=True)
class CanaryGame:
    """An attack that trains models on two neighbouring data sets and tells from a score which was used.

    Args:
        name: What its result and its tests are called.
        algorithms: Training algorithms that it applies to.
        build: From a specification and an audit to the ways of playing there are, each with two data sets that are
            neighbours under the claim's own adjacency; none where it was stopped.
        title: The name in a sentence.
        making: What is made of each data set, such as "Training models".
        note: What the result does and does not speak of, in a sentence.
        by_default: Whether it is carried out where the settings name no attacks.
        applies: Whether it can be played with the training of an audit, its algorithm aside.
        needs: What that takes, in a sentence.
    """

    name: str
    algorithms: tuple[str, ...]
    build: Callable[..., Sequence[Candidate]]
    title: str
    making: str
    note: str
    by_default: bool = True
    applies: Callable[[Audit], bool] = always
    needs: str = ""

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """One: the claimed (epsilon, delta) and the mechanism's whole curve share its error probability."""
        if audit.spec.algorithm not in self.algorithms or not self.applies(audit):
            return ()
        return (f"{self.name}:joint",)

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Play the game, and its positive control first; None if it does not apply, or there are too few models."""
        if not self.tests(audit):
            audit.notes.extend([self.needs] if audit.spec.algorithm in self.algorithms else [])
            return None
        design = self.design(audit, shares)
        without, with_canary, look = np.empty(0), np.empty(0), 1
        if design is not None:
            models = self._control(audit, shares, design)
            if not audit.trials.stopped:
                expected = self._look(audit, design.pilot, models, count=False)
                without, with_canary, look = self._play(audit, design.pilot, models)
                if look > expected and not audit.trials.stopped:
                    self._control_again(audit, shares, design, models, look)
        audit.notes.append(self.note)
        if design is None or len(without) < FEWEST:
            made = self.making.split()[-1]
            audit.notes.append(f"{self.title} was stopped after {len(without)} {made} per arm: too few for a bound.")
            return None
        refutes = self.refuter(audit, shares, look)
        own = audit.controls[-1] if audit.controls and audit.controls[-1].attack == self.name else None
        half = design.pilot.separation if own is None or own.separation is None else own.separation
        found = own is not None and own.found
        if (little := learns_little(audit, half, refutes, without, with_canary, control_found=found)) is not None:
            audit.notes.append(little)
            if own is not None and not takes_noise_factor(audit.settings.trainer):
                audit.controls[-1] = replace(own, unlike=little)
        return self.judge(audit, shares, design.pilot.arms, without, with_canary, look=look)

    def design(self, audit: Audit, shares: Mapping[str, float]) -> Design | None:
        """How it is going to be played, by a pilot; None if it was stopped.

        All models start from the same initial weights. The number of models per arm is the settings', or what the
        audit's own tests need for scores as far apart as the pilot's, but no further than an ideal attack's on half of
        the claimed noise: a broken training that scales its own noise lies further apart.
        """
        spec, seed = audit.spec, audit.settings.seed
        if not isinstance(spec, MinimumSpec):
            spec = replace(spec, init_seed=seed)
        candidates = self.build(spec, audit)
        ways = piloted(audit)
        pilot = run_pilot(audit, candidates, ways) if candidates else None
        if pilot is None:
            return None
        itself = ", and of the loop under audit as it is" if len(ways) > 1 else ""
        spoken = {
            "score": pilot.score_name,
            "pilot": f"{pilot.models} models of {pilot.candidates} candidates, with half of the noise, of "
            f"{controlled_training(audit)}{itself}; not counted in any bound",
            "pilot_separation": pilot.separation,
        }
        if pilot.watch is not None:
            spoken["attacker_sees"] = "every noisy sum of retrained models, and all other records"
        pilot = replace(pilot, arms=replace(pilot.arms, description={**pilot.arms.description, **spoken}))
        most = min(audit.settings.trials or MODELS[-1], MODELS[-1])
        needed, forecast = models_needed(
            self.refuter(audit, shares),
            min(pilot.separation, ideal_separation(audit) / CONTROLLED_NOISE),
            [*(models for models in MODELS if models < most), most],
            rng=np.random.default_rng(trial_seed(seed, _PLAN, 0)),
        )
        return Design(self.name, pilot, audit.settings.trials or needed, needed, forecast)

    def _control(self, audit: Audit, shares: Mapping[str, float], design: Design) -> int:
        """Carry out the positive control, where there is to be one; the models per arm that it asks for."""
        if design.warning:
            audit.warn(design.warning)

        def refutes(models: int) -> Refutes:
            look = self._look(audit, design.pilot, audit.settings.trials or models, count=False)
            return self.refuter(audit, shares, look)

        control = None
        if audit.settings.control:
            control = run_control(self.name, audit, design.pilot, design.control_models, refutes)
        built_in = built_in_control(self.name, audit, design.pilot, control, refutes)
        if control is not None and built_in is not None and (built_in.models > control.models or not built_in.found):
            audit.notes.append(halved_twice(built_in))
            if built_in.found:
                control = run_control(self.name, audit, design.pilot, built_in.models, refutes)
        if control is None:
            return design.models
        audit.controls.append(control)
        return audit.settings.trials or max(control.models, design.control_models)

    def _control_again(self, audit: Audit, shares: Mapping[str, float], design: Design, models: int, look: int) -> None:
        """Judge the control at the level of the look that was taken, where another came between: no more was tested."""
        if not audit.controls or audit.controls[-1].attack != self.name:
            return
        least, refutes = audit.controls.pop().models, self.refuter(audit, shares, look)
        at_most = replace(audit, settings=replace(audit.settings, trials=models))
        control = run_control(self.name, at_most, design.pilot, least, lambda _: refutes)
        audit.controls.extend([] if control is None else [control])

    def _play(self, audit: Audit, pilot: Pilot, models: int) -> tuple[Scores, Scores, int]:
        """The scores of models without the canary and with it, and how often as many or fewer were looked at."""
        setup = audit.trial_setup(pilot.spec, pilot.arms.pool, pilot.score, pilot.watch)
        lists = pilot.arms.trials(models, audit.settings.seed)
        without, with_canary = audit.trials.run(setup, *lists, what=self.making)
        look = self._look(audit, pilot, len(without)) if len(without) >= FEWEST else 1
        return without, with_canary, look

    def _look(self, audit: Audit, pilot: Pilot, models: int, *, count: bool = True) -> int:
        """Count a look at so many models per arm, or say which it would be: of any canary it is the same game."""
        setup = audit.trial_setup(pilot.spec, pilot.arms.pool, pilot.score, pilot.watch)
        lists = pilot.arms.trials(1, audit.settings.seed)
        return audit.look(self.name, setup, *lists, trials=models, count=count)

    def refuter(self, audit: Audit, shares: Mapping[str, float], look: int = 1) -> Refutes:
        """From scores without and with the canary to whether `judge` would refute the claim by them at that look."""
        verdict, level, seed = audit.claim_check, self._confidence(audit, shares, look), audit.settings.seed
        curves = [audit.tradeoff]
        if verdict.verdict != "certified":  # the claim's own curve is then not above the mechanism's
            curves.append(Tradeoff.of_points([verdict.epsilon_claimed], [verdict.delta_claimed]))

        def refutes(without: Scores, with_canary: Scores) -> bool:
            test = JointTest(with_canary, without, curves[0], confidence=level, seed=seed)
            return any(test.rejects(curve) for curve in curves)

        return refutes

    def _confidence(self, audit: Audit, shares: Mapping[str, float], look: int = 1) -> float:
        """Level of the tests of one look: the i-th has 6/(pi^2 i^2) of the error probability, all of them the whole."""
        return 1.0 - spent_at(sum(shares[test] for test in self.tests(audit)), look)

    def judge(
        self,
        audit: Audit,
        shares: Mapping[str, float],
        arms: Arms,
        without: Scores,
        with_canary: Scores,
        *,
        look: int = 1,
    ) -> AttackResult:
        """What the scores of two arms prove, by one joint test with the error probability of this look.

        Args:
            audit: What is attacked.
            shares: Error probability of its tests, over all looks together.
            arms: Whose models were scored.
            without: Their scores, shape (models,).
            with_canary: Those of the other arm.
            look: How often the growing evidence has been looked at, this time included.
        """
        level = self._confidence(audit, shares, look)
        claimed, epsilon, delta = audit.tradeoff, audit.claim_check.epsilon_claimed, audit.claim_check.delta_claimed
        test = JointTest(with_canary, without, claimed, confidence=level, seed=audit.settings.seed)
        best = best_possible_epsilon(len(with_canary), len(without), claimed, epsilon, delta, level, test.seed)
        bound = joint_bound(test, delta, epsilon)
        result = joint_result(self.name, audit, test, bound, arms.description, look=look)
        return replace(
            result,
            confidence_spent=sum(shares[test] for test in self.tests(audit)),
            best_possible_epsilon=best,
            family_bound=family_bound(audit, test),
        )


def ideal_separation(audit: Audit) -> float:
    """Distance of the arms' scores, in standard deviations of one, if noise is normal and as large as it has to be."""
    check, delta = audit.claim_check, max(audit.claim_check.delta_claimed, 1e-12)
    epsilon = max(check.epsilon_claimed, check.epsilon_upper if check.epsilon_upper < math.inf else 0.0)
    return 1.0 / analytic_gaussian_sigma(1.0, epsilon=epsilon, delta=delta)


def halved_twice(built_in: Control) -> str:
    """What is told of a loop that is its own control, where the built-in training asks for more, a sentence.

    Args:
        built_in: The control by the built-in training.
    """
    needs = f"{built_in.models:,} models per arm" if built_in.found else f"more than {built_in.models:,} models per arm"
    return (
        f"Of the built-in training, half of the noise takes {needs} to be found. A loop that adds half of the claimed "
        "noise halves that again as its own positive control, and a quarter is found with fewer"
        + (": so many are trained of the loop." if built_in.found else ", so that its silence may say less than that.")
    )


def learns_little(
    audit: Audit, half: float, refutes: Refutes, without: Scores, with_canary: Scores, *, control_found: bool = False
) -> str | None:
    """What is told of a user's loop whose scores depend on the canary far less than they should, a sentence.

    Half of the noise moves scores about twice as far apart as all of it. Where the tests would not refute the loop's
    scores even then, and would those of a training like the control's, the silence of the audit is no merit of its
    noise. A loop that draws weights without a look at its records is private, whatever noise it says that it adds, and
    no attack on its models can tell.

    Args:
        audit: Whose loop.
        half: Distance of the scores of a training with half of the noise: the control's, whose models are many, or the
            pilot's, which the choice among its candidates raises.
        refutes: The audit's own tests.
        without, with_canary: Scores of the loop's models.
        control_found: Whether the positive control says that half of the noise would have been found.
    """
    if audit.settings.trainer is train:
        return None
    apart = float(separation(without[:, None], with_canary[:, None])[0])
    expected = min(half / 2, ideal_separation(audit))  # a loop that takes a factor may scale its noise to none
    deviation = math.sqrt(1.0 / len(without) + 1.0 / len(with_canary))

    def with_half_the_noise(distance: float) -> int:
        rng = np.random.default_rng(trial_seed(audit.settings.seed, _LITTLE, 0))
        return models_needed(refutes, distance / CONTROLLED_NOISE, [len(without)], rng=rng)[1]

    enough = PROMISED_POWER * DRAWS
    clear = with_half_the_noise(expected) >= enough
    if not clear and not control_found:
        return None
    # a control that is found by a hair is no measure to a hair
    found = with_half_the_noise(apart + (DOUBT if clear else 2.0 * DOUBT) * deviation)
    if found >= enough:
        return None
    return (
        f"Scores of the loop's models lie {apart:.2g} deviations apart, where those of "
        f"{controlled_training(audit)} let expect about {expected:.2g}, and twice as far, as with half of its noise, "
        f"they would be found in {found} of {DRAWS} audits, not in {math.ceil(enough)}: a loop that learns little "
        "of a record shows little of it whatever its noise, so that its silence says less than the positive control "
        "does. A loop with a parameter noise_factor is its own positive control."
    )


@lru_cache(maxsize=64)
def best_possible_epsilon(
    m: int, n: int, claimed: Tradeoff, promised: float, delta: float, confidence: float, seed: int
) -> float:
    """The bound on epsilon that arms of m and n models would prove if no score of the one were below the other's."""
    return joint_bound(JointTest(np.ones(m), np.zeros(n), claimed, confidence, seed), delta, promised).epsilon_lower


def joint_result(
    name: str, audit: Audit, test: JointTest, bound: LowerBound, arms: dict[str, Any], **details: Any
) -> AttackResult:
    """What a joint test of two arms found: the claimed curve, a bound on epsilon, and how well the scores tell them.

    Args:
        name: The attack's.
        audit: What is attacked.
        test: Of its scores, at the level that it spends.
        bound: What follows for epsilon.
        arms: Who is told from whom.
        details: Kept in the result.
    """
    curve = curve_test(test, audit.tradeoff)
    return AttackResult(
        name=name,
        epsilon_lower=bound.epsilon_lower,
        curve_violation=curve if curve.violated else None,
        arms=arms,
        confidence_spent=1.0 - test.confidence,
        trials=min(len(test.in_scores), len(test.out_scores)),
        best_possible_epsilon=None,
        bound=bound,
        curve_test=curve,
        **operating_points(test.in_scores, test.out_scores, confidence=audit.settings.confidence, **details),
    )


def family_bound(audit: Audit, test: JointTest) -> LowerBound | None:
    """The same if the noise is of the claimed family: at most so much of it, so epsilon at least; None if none follows.

    The claim with every noise scale multiplied by one factor is rejected for all factors from some number on; the
    certified lower bound of the claim at that number is then a lower bound on epsilon.
    """
    scaled = audit.scaled_claim
    if scaled is None or audit.trials.stopped:
        return None
    factor = test.factor_upper(lambda factor: Tradeoff.of(upper_curve(scaled(factor))))
    if factor == np.inf:
        return None
    lower = check(scaled(factor)).epsilon_lower
    names = ", ".join(sorted({phase.mechanism.name for phase in scaled(1.0).phases}))
    return LowerBound(
        epsilon_lower=lower,
        delta=audit.claim_check.delta_claimed,
        confidence=test.confidence,
        method=METHOD,
        inputs={"noise_factor_upper": factor},
        source=SOURCE,
        assumes=f"noise of the claimed family ({names}) and sampling as claimed; only its scale is in question",
    )
