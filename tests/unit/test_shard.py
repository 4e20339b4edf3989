# SPDX-License-Identifier: Apache-2.0
"""A plan cut in parts: nothing twice, nothing lost, balanced, stable; and the parts' folders merged again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import wire
from harness.errors import UsageError
from harness.plan import named, select
from harness.records import SCHEMA_VERSION, Plan, Role
from harness.shard import SHARD_FILE, Shard, ShardFile, groups, part, question, read_spec
from tests.quick import Quick
from tests.small import SMALL
from tests.unit.handmade import make_cell, make_leg

#: Six cells; both transfers of a layout share an oracle.
WIDE = SMALL.replace("layout: [LBHNC]", "layout: [LBHNC, BHLNC, LHBNC]")


def plan_of(pairs: list[tuple[int, int]]) -> Plan:
    """A cell per (oracle number, subject number)."""
    cells = tuple(
        make_cell(id=f"cell{place}", oracle=f"o{oracle}", subject=f"s{subject}")
        for place, (oracle, subject) in enumerate(pairs)
    )
    digests = dict.fromkeys(digest for cell in cells for digest in (cell.oracle, cell.subject))
    legs = tuple(make_leg(Role.ORACLE if one[0] == "o" else Role.SUBJECT, digest=one) for one in digests)
    return Plan(schema=SCHEMA_VERSION, cells=cells, legs=legs)


PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=20)


@settings(deadline=None)
@given(pairs=PAIRS, count=st.integers(1, 6))
def test_every_cell_is_in_one_part_and_no_leg_in_two(pairs, count):
    plan = plan_of(pairs)
    parts = [part(plan, Shard(index=index, count=count)) for index in range(1, count + 1)]
    assert sorted(cell.name for one in parts for cell in one.cells) == sorted(cell.name for cell in plan.cells)
    assert sorted(leg.digest for one in parts for leg in one.legs) == sorted(leg.digest for leg in plan.legs)
    order = [cell.name for cell in plan.cells]
    for one in parts:
        names = [cell.name for cell in one.cells]
        assert names == sorted(names, key=order.index)
    # Dealt out by size: no part exceeds the lightest by more than the largest group.
    loads = [len(one.legs) for one in parts]
    sizes = [len({d for place in group for d in (plan.cells[place].oracle, plan.cells[place].subject)})
             for group in groups(plan)]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_cells_that_share_legs_through_others_stay_together():
    plan = plan_of([(0, 0), (1, 1), (0, 2), (1, 2), (3, 3)])
    assert groups(plan) == [[0, 1, 2, 3], [4]]
    assert [len(part(plan, Shard(index=index, count=2)).cells) for index in (1, 2)] == [4, 1]
    assert part(plan, Shard(index=3, count=3)).cells == ()


def test_equal_groups_are_dealt_out_evenly_and_always_alike():
    plan = plan_of([(number, number) for number in range(10)])
    cut = [[cell.id for cell in part(plan, Shard(index=index, count=4)).cells] for index in range(1, 5)]
    assert cut == [
        ["cell0", "cell4", "cell8"], ["cell1", "cell5", "cell9"], ["cell2", "cell6"], ["cell3", "cell7"],
    ]


def test_a_shard_is_written_as_part_and_number():
    assert read_spec("2/5") == Shard(index=2, count=5)
    for text in ("0/5", "6/5", "2", "a/b", "2/0", "-1/5", ""):
        with pytest.raises(UsageError, match="valid: I/N with I from 1 to N"):
            read_spec(text)


def sharded(quick: Quick, count: int, text: str = WIDE, fake=None) -> list[str]:
    """Run folders ``shard1``... of a plan, as ``matrix --shard`` leaves them."""
    whole = quick.plan(text, fake)
    for index in range(1, count + 1):
        path = quick.of_plan(f"shard{index}", part(whole, Shard(index=index, count=count)))
        wire.write(path / SHARD_FILE, ShardFile(index=index, count=count, whole=whole))
    return [f"shard{index}" for index in range(1, count + 1)]


#: Columns that say how long it took, or how much memory.
MEASURED = ["duration_s", "oracle_s", "subject_s", "peak_mib"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_merged_shards_report_what_one_run_reports(quick, count):
    fake = {"BHLNC-REFERENCE-bi1": {"subject": {"phases": {"restore": {"external_tokens": -1}}}}}
    one = quick.run("one", WIDE, fake)
    code, text = quick.verb("merge", "all", *sharded(quick, count, fake=fake))
    assert code == 10 and "not whole" not in text
    all_ = one.parent / "all"
    frames = [pd.read_csv(path / "frame.csv").drop(columns=MEASURED) for path in (one, all_)]
    pd.testing.assert_frame_equal(*frames)
    assert (all_ / "verdicts.jsonl").read_text() == (one / "verdicts.jsonl").read_text()
    assert (all_ / "plan.json").read_text() == (one / "plan.json").read_text()
    reports = [_timeless((path / "report.md").read_text(), path.name) for path in (one, all_)]
    assert reports[0] == reports[1]
    assert quick.verb("check", "all")[0] == quick.verb("check", "one")[0] == 10


def _timeless(text: str, name: str) -> str:
    """A report without its folder, its duration and its measured columns."""
    lines = []
    for line in text.replace(f"; {name}\n", "; RUN\n").splitlines():
        line = line.split(" in ")[0] if line.startswith("**") else line
        lines.append(line.replace(f"{name}/legs", "RUN/legs").rsplit("|", 2)[0] if line.startswith("|") else
                     line.replace(f"{name}/legs", "RUN/legs"))
    return "\n".join(lines)


def test_a_shard_that_is_not_there_leaves_cells_without_result(quick):
    names = sharded(quick, 3)
    code, text = quick.verb("merge", "some", names[0], names[2])
    assert code == 10
    assert "not whole: shard 2/3 is not among the merged runs" in text
    assert "6 cells: 4 pass, 2 not run" in text
    assert "not whole: 2 of 6 cells have no result: " in text


def test_cells_that_were_not_selected_are_not_missed(quick):
    whole = quick.plan(WIDE)
    for index in (1, 2):
        mine = part(whole, Shard(index=index, count=2))
        chosen = select(mine, [cell.name for cell in mine.cells if cell.batch_invariant])
        path = quick.of_plan(f"shard{index}", chosen)
        wire.write(path / SHARD_FILE, ShardFile(index=index, count=2, whole=whole))
    code, text = quick.verb("merge", "all", "shard1", "shard2")
    assert code == 0 and "3 cells: 3 pass" in text and "not whole" not in text


def test_the_same_cell_twice_is_taken_once_unless_its_verdicts_differ(quick):
    names = sharded(quick, 2)
    shutil.copytree("shard1", "again")
    assert quick.verb("merge", "all", *names, "again")[0] == 0
    plan = json.loads((quick.root / "again" / "plan.json").read_text())
    path = quick.root / "again" / "legs" / f"{plan['cells'][0]['subject']}.json"
    observation = json.loads(path.read_text())
    observation["phases"][2]["external_tokens"] -= 1
    path.write_text(json.dumps(observation))
    code, text = quick.verb("merge", "other", *names, "again")
    assert code == 4
    assert f"::{plan['cells'][0]['id']} is pass in shard1 and vacuous in again: keep one of the two" in text
    assert not (quick.root / "other").exists()


def test_what_is_no_part_of_one_run_is_refused(quick):
    names = sharded(quick, 2)
    quick.run("plain")
    code, text = quick.verb("merge", "all", names[0], "plain")
    assert code == 4 and "plain: is no shard (it has no shard.json); merge takes runs made with SHARD=I/N" in text
    assert quick.verb("merge", names[1], names[0])[1] == f"ERROR: {names[1]}: is not empty; " \
        "name a folder that does not exist yet\n"


def test_shards_of_another_plan_cut_or_version_are_refused(quick):
    sharded(quick, 2)
    (quick.root / "shard1").rename(quick.root / "mine")
    sharded(quick, 2, WIDE.replace("max_tokens: 4", "max_tokens: 5"))
    code, text = quick.verb("merge", "all", "mine", "shard2")
    assert code == 4 and "shard2 and mine are shards of other plans (the same cells with other settings)" in text

    sharded(quick, 2, SMALL)
    code, text = quick.verb("merge", "all", "mine", "shard2")
    assert code == 4 and "are shards of other plans (cells of one alone: small::BHLNC-REFERENCE-bi0" in text

    sharded(quick, 3)
    code, text = quick.verb("merge", "all", "mine", "shard3")
    assert code == 4 and "shard3 is one of 3 shards, mine one of 2: merge shards of one cut" in text

    sharded(quick, 2)
    path = quick.root / "shard2" / "env.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "torch": "9.9"}))
    code, text = quick.verb("merge", "all", "mine", "shard2")
    assert code == 4 and f"mine has torch {facts['torch']}, shard2 has 9.9: shards of other versions" in text
    # Another processor is no other version; both are named.
    path.write_text(json.dumps({**facts, "processor": "other"}))
    assert quick.verb("merge", "all", "mine", "shard2")[0] == 0
    assert json.loads((quick.root / "all" / "env.json").read_text())["processor"].endswith(", other")


def test_a_killed_shard_is_merged_with_what_it_has(quick):
    names = sharded(quick, 2)
    for name in ("env.json", "verdicts.jsonl", "frame.csv", "report.md"):
        (quick.root / "shard2" / name).unlink()
    plan = json.loads((quick.root / "shard2" / "plan.json").read_text())
    (quick.root / "shard2" / "legs" / f"{plan['cells'][-1]['oracle']}.json").unlink()
    code, text = quick.verb("merge", "all", *names)
    assert code == 10 and "6 cells: 5 pass, 1 not run" in text


def test_a_plans_question_does_not_depend_on_the_machine():
    plan = plan_of([(0, 0), (0, 1)])
    elsewhere = {
        leg.digest: named(replace(leg, identity={"processor": "x"}, model=replace(leg.model, path="/elsewhere")))
        for leg in plan.legs
    }
    cells = [
        replace(cell, oracle=elsewhere[cell.oracle].digest, subject=elsewhere[cell.subject].digest)
        for cell in plan.cells
    ]
    moved = Plan(schema=SCHEMA_VERSION, cells=tuple(cells), legs=tuple(elsewhere.values()))
    assert question(moved) == question(plan)
    other = replace(plan, legs=tuple(replace(leg, layout="BHLNC") for leg in plan.legs))
    assert question(other) != question(plan)
