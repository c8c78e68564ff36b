"""Accountants behind one signature, a file per package; a package is imported when first asked."""

from dpaudit.verify.accountants.base import Accountant as Accountant
from dpaudit.verify.accountants.base import HistoryAccountant as HistoryAccountant
from dpaudit.verify.accountants.dp_accounting_adapter import DPAccounting as DPAccounting
from dpaudit.verify.accountants.opacus_adapter import Opacus as Opacus
from dpaudit.verify.accountants.prv_accountant_adapter import PRVAccountant as PRVAccountant
from dpaudit.verify.accountants.published_adapter import Published as Published
