"""Numbers as a reader takes them in: 144.8 M tokens, 400k, 37.4%."""

from __future__ import annotations


def tokens(count: int) -> str:
    """A number of tokens, rounded: `2,047`, `12.5k`, `400k`, `144.8 M`."""
    for size, unit in ((10**9, " G"), (10**6, " M")):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    if count >= 10**4:
        return f"{count / 10**3:.1f}".removesuffix(".0") + "k"
    return f"{count:,}"


def capacity(count: int | None) -> str:
    """A capacity in tokens, as one asks for it: `5k`, `1.5 M`; None is `unbounded`."""
    if count is None:
        return "unbounded"
    return f"{count // 1000}k" if count < 10**6 and count % 1000 == 0 else tokens(count)


def share(part: int, whole: int, digits: int = 1) -> str:
    """A share in percent; something that would round to nothing is not shown as nothing."""
    ratio = part / whole if whole else 0.0
    if 0 < ratio < 10.0 ** -(digits + 2) / 2:
        return f"<{10.0**-digits:.{digits}f}%"
    return f"{ratio:.{digits}%}"


def microseconds(value: float | None) -> str:
    """Whole microseconds."""
    return "" if value is None else f"{value:,.0f}"
