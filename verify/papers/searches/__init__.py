"""The parameter searches that the four papers print, with their own accountants or with the valid bound."""
