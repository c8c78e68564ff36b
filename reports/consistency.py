"""What a result that was read says against itself, as after an edit by hand: a page would show both."""

from dpaudit.verify.results import AuditResult, Verdict


def verdict_contradiction(verdict: Verdict) -> str:
    """Why a verdict on an (epsilon, delta) is not what its own bracket decides, as a clause; "" where it is."""
    if verdict.guarantee is not None:
        return ""
    least, most = (verdict.epsilon_lower, verdict.delta_lower), (verdict.epsilon_upper, verdict.delta_upper)
    claimed = verdict.epsilon_claimed, verdict.delta_claimed
    if verdict.verdict == "certified" and not any(bound <= at for bound, at in zip(most, claimed, strict=True)):
        return f"it is certified, and delta is at most {verdict.delta_upper:g}, not {verdict.delta_claimed:g}"
    if verdict.verdict == "refuted" and not any(bound > at for bound, at in zip(least, claimed, strict=True)):
        return f"it is refuted, and delta is at least {verdict.delta_lower:g}, not above {verdict.delta_claimed:g}"
    return ""


def contradiction(result: AuditResult) -> str:
    """Why an audit's verdict is not what its findings decide, as a clause; "" where it is."""
    found = []
    for name, check in (("claim-check", result.claim_check), ("as-run", result.check_as_run)):
        if check is not None and (why := verdict_contradiction(check)):
            return f"{name}: {why}"
        found += [name] if check is not None and check.verdict == "refuted" else []
    possible: list[str] = []
    for attack in result.attacks:
        above = attack.epsilon_lower is not None and attack.epsilon_lower > result.epsilon_claimed
        tested = isinstance(attack.details.get("p_value"), float)
        found += attack.refuting(result.epsilon_claimed)
        possible += [
            f"{attack.name}:{kind}" for kind, shown in (("epsilon_lower", above), ("p_value", tested)) if shown
        ]
    possible += found
    for name in result.refuted_by:
        if name not in possible:
            return f"it is refuted by {name!r}, which its findings do not show"
    for name in found:
        if name not in result.refuted_by:
            return f"{name} contradicts the claim, and is not among what refutes it"
    if (result.verdict == "refuted") != bool(result.refuted_by):
        return f"it is {result.verdict}, and what refutes it is {', '.join(result.refuted_by) or 'nothing'}"
    if result.verdict == "not_refuted" and result.control is not None and not result.control.gives_power:
        return "it is not_refuted, and its positive control does not give it the power to say so"
    if result.verdict == "not_refuted" and {"noise_seen", "noise_repeated"} & set(result.reproduce):
        return "it is not_refuted, and its training was seen to lack noise"
    return ""
