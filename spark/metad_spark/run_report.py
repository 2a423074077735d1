"""``metad-spark report``: a page about one storm, or about many, from what the tables have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from . import sliced
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
from .tables.queries import curves, groups, storm
from .tables.run import REQUESTS, Run, comparison
from .tables.store import Store
from .target import Target
from .validation import validity
from .wording import LEFT_OUT


def run(*, tables: Path, runs: Sequence[str], out: Path, target: Target, command: str) -> int:
    """Write the page. ``runs``: beginnings of identities; none: all storms of the tables. Raises TablesError."""
    store = Store(tables)
    names = [store.find(beginning) for beginning in runs] or store.ids()
    found = [store.read(name) for name in dict.fromkeys(names)]
    if not runs:
        found = [each for each in found if each.question.kind == "storm"]
    if not found:
        raise TablesError(f"{tables}: it has no storm; metad-spark simulate --tables DIR and sweep write them")
    made = made_by(command, found[0].question.version)
    if len(found) == 1 and found[0].question.kind == "storm":
        page = page_of(store, found[0], target, made)
    else:
        page = several.report(groups(found), target, worth(found), made)
    out.write_text(page.html(), encoding="utf-8")
    say(f"{out}: {len(found)} {'run' if len(found) == 1 else 'runs'} of {tables}. {worth(found)}")
    return 0


def made_by(command: str, version: str) -> list[str]:
    """How and when a page was made, for its foot."""
    return [command, f"metad {version}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"]


def worth(runs: Sequence[Run]) -> str:
    """What is said of the predictions of some runs: of those of the model of requests, what all have that no checked
    storm had."""
    said = {_said(run) for run in runs}
    if len(said) == 1:
        return said.pop()
    rest = "What a prediction is worth differs from run to run: report --run ID says it."
    if any(run.question.costs is None for run in runs):
        return rest
    first, *others = (sliced.validity(run.question.scenario, run.storm.rejected)[1] for run in runs)
    common = [each for each in first if all(each in other for other in others)]
    return f"{validity(REQUESTS, common)} {rest}" if common else rest


def _said(run: Run) -> str:
    if run.question.costs is not None:
        return sliced.validity(run.question.scenario, run.storm.rejected)[0]
    return f"{validity(run.storm.model)} {LEFT_OUT}"


def compare_around(store: Store, run: Run, context: Context) -> None:
    """Have the tables know the storms that a page about this one compares it with."""
    asked = run.question
    tried, around = _alternatives(asked.scenario, asked.measured)
    flat = [change.scenario for change in tried] + [one for line in around.scenarios for one in line]
    store.compare(context.sweep, context.choice.runner)(flat, asked.measured)


def page_of(store: Store, run: Run, target: Target, made: Sequence[str]) -> Page:
    """The page about one storm; of the vector model with the comparisons that the tables have. Raises TablesError."""
    if run.question.costs is not None:
        return content.sliced(
            scenario=run.question.scenario,
            costs=run.question.costs,
            storm=run.storm,
            curves=curves(store, run),
            found=sliced.estimate(store, run),
            validation=_said(run),
            target=target,
            run=run.run,
            made=made,
        )
    scenario, costs = run.question.scenario, run.question.measured
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
    name = comparison(scenario, run.question.measured, run.question.version).run
    return store.read(name).storm if store.has(name) else None


def _alternatives(scenario: Scenario, costs: Calibration) -> tuple[list[Change], Grid]:
    tried = [change for change in changes(scenario, costs) if change.scenario.cluster.groups <= scenario.clients]
    return tried, grid(scenario, costs)
