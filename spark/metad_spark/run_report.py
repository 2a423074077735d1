"""``metad-spark report``: a page about one storm, or about many, from what the tables have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from .brokers.storm import clients_by_region
from .calibration import Calibration
from .changes import Change, Grid, changes, grid
from .errors import TablesError
from .models.results import StormResult
from .output import say
from .pipeline.context import Context
from .report import content, several
from .report.page import Page
from .scenario import Scenario
from .tables.queries import groups, storm
from .tables.run import Run, comparison
from .tables.store import Store
from .target import Target
from .validation import validity


def run(*, tables: Path, runs: Sequence[str], out: Path, target: Target, command: str) -> int:
    """Write the page. ``runs``: beginnings of identities; none: all storms of the tables. Raises TablesError."""
    store = Store(tables)
    names = [store.find(beginning) for beginning in runs] or store.ids()
    found = [store.read(name) for name in dict.fromkeys(names)]
    if not runs:
        found = [each for each in found if each.question.kind == "storm"]
    if not found:
        raise TablesError(f"{tables}: it has no storm; metad-spark simulate --tables DIR and sweep write them")
    made = [command, f"metad {found[0].question.version}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"]
    if len(found) == 1 and found[0].question.kind == "storm":
        page = storm_page(store, found[0], target, made)
    else:
        page = several.report(groups(found), target, made)
    out.write_text(page.html(), encoding="utf-8")
    say(f"{out}: {len(found)} {'run' if len(found) == 1 else 'runs'} of {tables}. {validity(found[0].storm.model)}")
    return 0


def compare_around(store: Store, run: Run, context: Context) -> None:
    """Have the tables know the storms that a page about this one compares it with."""
    asked = run.question
    tried, around = _alternatives(asked.scenario, asked.calibration)
    flat = [change.scenario for change in tried] + [one for line in around.scenarios for one in line]
    store.compare(context.sweep, context.choice.runner)(flat, asked.calibration)


def storm_page(store: Store, run: Run, target: Target, made: Sequence[str]) -> Page:
    """The page about one storm, with the comparisons that the tables have. Raises TablesError."""
    scenario, costs = run.question.scenario, run.question.calibration
    tried, around = _alternatives(scenario, costs)
    answers = [(change, _known(store, run, change.scenario)) for change in tried]
    known = [(change, answer) for change, answer in answers if answer is not None]
    cells = [[_known(store, run, one) for one in line] for line in around.scenarios]
    whole = [[cell for cell in line if cell is not None] for line in cells]
    has_all = [len(line) for line in whole] == [len(line) for line in cells]
    return content.report(
        scenario=scenario,
        calibration=costs,
        storm=storm(store, run),
        clients=clients_by_region(scenario, costs),
        target=target,
        changes=known if answers[0][1] is not None else [],
        grid=around if has_all else None,
        cells=whole,
        faults=run.faults,
        made=made,
        settings=[("model", run.storm.model), ("run", run.run), *content.settings(scenario, costs)],
    )


def _known(store: Store, run: Run, scenario: Scenario) -> StormResult | None:
    """A comparison that the tables have, by the same version as the run."""
    name = comparison(scenario, run.question.calibration, run.question.version).run
    return store.read(name).storm if store.has(name) else None


def _alternatives(scenario: Scenario, costs: Calibration) -> tuple[list[Change], Grid]:
    tried = [change for change in changes(scenario, costs) if change.scenario.cluster.groups <= scenario.clients]
    return tried, grid(scenario, costs)
