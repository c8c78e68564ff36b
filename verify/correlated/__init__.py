"""Correlated noise, as in DP-FTRL and matrix mechanisms: strategies, participation schemas, and their sensitivity."""

from dpaudit.verify.correlated.correlation import STRATEGIES as STRATEGIES
from dpaudit.verify.correlated.correlation import Correlation as Correlation
from dpaudit.verify.correlated.correlation import Side as Side
from dpaudit.verify.correlated.correlation import correlation_from_dict as correlation_from_dict
from dpaudit.verify.correlated.matrix import Matrix as Matrix
from dpaudit.verify.correlated.matrix import matrix_from_bytes as matrix_from_bytes
from dpaudit.verify.correlated.participation import Participation as Participation
from dpaudit.verify.correlated.patterns import Sensitivity as Sensitivity
from dpaudit.verify.correlated.toeplitz import BLT as BLT
from dpaudit.verify.correlated.toeplitz import BandedToeplitz as BandedToeplitz
from dpaudit.verify.correlated.toeplitz import Identity as Identity
from dpaudit.verify.correlated.toeplitz import SquareRootToeplitz as SquareRootToeplitz
from dpaudit.verify.correlated.tree import Tree as Tree
