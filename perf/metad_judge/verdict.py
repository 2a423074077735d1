"""What a judge has found: faults counted by kind, and the first of them in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

import msgspec

EXAMPLES_MAX: Final = 20


class Verdict(msgspec.Struct, kw_only=True):
    """A kind of fault, and whatever else is counted, is a field of each judge's own verdict."""

    examples: list[str] = msgspec.field(default_factory=list)

    def fault(self, kind: str, why: str, count: int = 1) -> None:
        """Count more faults of a kind."""
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{kind}: {why}")

    @property
    def counts(self) -> dict[str, int]:
        """What was counted, and is not 0."""
        return {field: count for field in self.counted() if (count := getattr(self, field))}

    @classmethod
    def counted(cls) -> list[str]:
        """The names of all counts."""
        return [field for field in cls.__struct_fields__ if field != "examples"]

    @classmethod
    def summed(cls, verdicts: Iterable[Self]) -> Self:
        """What several judges have found."""
        total = cls()
        for one in verdicts:
            for field in cls.counted():
                setattr(total, field, getattr(total, field) + getattr(one, field))
            total.examples = (total.examples + one.examples)[:EXAMPLES_MAX]
        return total
