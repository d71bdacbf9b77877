"""Reports to be written: one with everything in it, and names that somebody chose to do harm."""

from __future__ import annotations

from fsdp_migrate.report.model import (
    Badge,
    Cell,
    Code,
    Commands,
    Facts,
    Link,
    Name,
    Node,
    Notes,
    Number,
    Plot,
    Report,
    Series,
    Step,
    Steps,
    Table,
    Tree,
)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/p.png)",
    "a|b`c``d\\|e\\",
    "`<b>`",
    "a|b",
    "@octocat closes #1, see https://evil.example and www.evil.example or me@evil.example",
    "right\u202eexe.txt\u2066\u200b",
    "\x1b]0;owned\x07\x00\x85",
    "half \ud800",
    "{{ 7 * 7 }}{% raw %}{# x #}",
    "</style></script></title><b>",
    "a\nb\r\n# c\n| d |\n\n<b>",
    "&lt;b&gt;&#60;",
    "<!-- a --> <b>",
    "- a",
    "1. b",
    "=====",
    "    code",
    "*a* _b_ ~~c~~ $$d$$ __e__",
    "x" * 5000,
    "",
    " ",
)
"""Names as a checkpoint, a folder or a source may have them."""


def report_of(*names: str, verdict: str = "Different: 1 of 2.") -> Report:
    """Return a report that has these names wherever a name or a text can stand."""
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            Name(name),
            f"It is `{name}`.",
            name,
            Number(at, str(at)),
            Badge("changed", "warning"),
            Code("FM012"),
        )
        for at, name in enumerate(names)
    )
    columns = ("name", "sentence", "text", "number", "what", "code")
    points = ((1.0, 0.5), (2.0, float("nan")), (3.0, 0.25))
    return Report(
        title="fsdp-migrate sample",
        verdict=verdict,
        tone="bad",
        sections=(
            Facts("What was compared", tuple((name, Name(name)) for name in names)),
            Plot("Losses", "step", "loss", (Series("FSDP1", points),), "They fall.", ((2.0, "saved"),)),
            Table("Differences", columns, cells, "In order.", frozenset({"number"})),
            Table("Folded", columns, cells, folded=True),
            Table(
                "Links", ("thread",), ((Link("pytorch#1", "https://github.com/pytorch/pytorch/issues/1"),),)
            ),
            Tree(
                "Units",
                tuple(Node(min(at, 3), name, name, name, 0.5, at == 1) for at, name in enumerate(names)),
            ),
            Steps("What to do", tuple(Step(name, Commands((name, name))) for name in names)),
            Notes("Notes", names),
        ),
        versions=(("python", "3"), *(((name, name)) for name in names[:1])),
        command=f"fsdp-migrate sample {' '.join(names)}",
        made="Made on a day.",
    )
