"""What is released: noise mechanisms, clipping, and the structure that proofs rest on."""

from dpaudit.mechanisms.gamma_plrv import GammaPLRV
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.gamma_scale_laplace import GammaScaleLaplace
from dpaudit.mechanisms.gaussian import Gaussian
from dpaudit.mechanisms.generalized_gaussian import GeneralizedGaussian
from dpaudit.mechanisms.laplace import Laplace
from dpaudit.mechanisms.product import Product
from dpaudit.mechanisms.registry import from_dict, to_dict

__all__ = [
    "GammaPLRV",
    "GammaPLRVIID",
    "GammaScaleLaplace",
    "Gaussian",
    "GeneralizedGaussian",
    "Laplace",
    "Product",
    "from_dict",
    "to_dict",
]
