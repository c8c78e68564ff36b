"""Attacks: from a target and data to scores, higher = member."""

from dpaudit.audit.attacks.base import Attack
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.attacks.lira import LIRA
from dpaudit.audit.attacks.membership import MEMBERSHIP
from dpaudit.audit.attacks.releases import APPROXIMATE_MINIMA, OUTPUT_PERTURBATION

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        MEMBERSHIP,
        CLIPBKD,
        OUTPUT_PERTURBATION,
        APPROXIMATE_MINIMA,
        LIRA,
    )
}
