"""Attacks: from a target and data to scores, higher = member."""

from dpaudit.audit.attacks.base import Attack
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.attacks.history import HISTORY
from dpaudit.audit.attacks.lira import LIRA, ONLINE_LIRA
from dpaudit.audit.attacks.membership import CLASS_LOSS, MEMBERSHIP
from dpaudit.audit.attacks.one_run_canaries import BLANK, MISLABELLED, MOVEMENT, RANDOM_LABEL
from dpaudit.audit.attacks.reference import REFERENCE
from dpaudit.audit.attacks.releases import APPROXIMATE_MINIMA, OUTPUT_PERTURBATION
from dpaudit.audit.attacks.rmia import RMIA
from dpaudit.audit.attacks.text_one_run import SENTENCES
from dpaudit.audit.attacks.white_box import WHITE_BOX

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        MEMBERSHIP,
        CLIPBKD,
        OUTPUT_PERTURBATION,
        APPROXIMATE_MINIMA,
        LIRA,
        ONLINE_LIRA,
        RMIA,
        REFERENCE,
        CLASS_LOSS,
        WHITE_BOX,
        HISTORY,
        BLANK,
        RANDOM_LABEL,
        MISLABELLED,
        MOVEMENT,
        SENTENCES,
    )
}
