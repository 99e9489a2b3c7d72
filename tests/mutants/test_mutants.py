"""The mutants themselves: what they change is there, and they are the same wherever that stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import AREAS, DRAWN, ROOT, choose, files
from tests.mutants.drawing import candidates, draw
from tests.mutants.faults import EQUIVALENT, FAULTS, Fault, FaultGone, locate

SOURCE = """
def admit(self, number):
    if number > 3 and not self.closed:
        self.count += 1
        return True
    return False
"""


def made(folder: Path, name: str, source: str) -> Path:
    (folder / "package").mkdir(exist_ok=True)
    (folder / "package" / name).write_text(source)
    return folder


def test_every_fault_and_every_drawn_mutant_changes_a_line_that_is_there() -> None:
    chosen = choose(ROOT, must_exist=True)
    assert len(FAULTS) == 25
    assert len({mutant.name for mutant in chosen}) == 25 + DRAWN
    assert {mutant.area for mutant in chosen} == set(AREAS)
    for mutant in chosen:
        source = (ROOT / mutant.path).read_bytes()
        changed = mutant.apply(ROOT)
        assert changed != source
        compile(changed, mutant.path, "exec")


def test_the_tests_of_every_area_are_there() -> None:
    for area in AREAS.values():
        assert len(files(ROOT, area.tests)) == len(area.tests)


def test_only_drawn_mutants_are_excused() -> None:
    assert set(EQUIVALENT) <= {mutant.name for mutant in choose(ROOT, must_exist=True)[len(FAULTS) :]}


def test_one_thing_is_changed_at_a_time(tmp_path: Path) -> None:
    found = {mutant.name for mutant in candidates(made(tmp_path, "one.py", SOURCE), "area", "package/one.py")}
    condition = "admit: if number > 3 and (not self.closed): -> "
    assert found == {
        f"{condition}if number >= 3 and (not self.closed):",
        f"{condition}if number > 4 and (not self.closed):",
        f"{condition}if number > 3 or not self.closed:",
        f"{condition}if number > 3 and self.closed:",
        "admit: self.count += 1 -> pass",
        "admit: self.count += 1 -> self.count += 2",
        "admit: return True -> return None",
        "admit: return True -> return False",
        "admit: return False -> return True",
    }


def test_a_draw_is_the_same_when_code_moves(tmp_path: Path) -> None:
    made(tmp_path, "one.py", SOURCE)
    made(tmp_path, "two.py", f"import os\n\n\nclass Gate:{SOURCE.replace(chr(10), chr(10) + '    ')}")
    first, second = (draw(candidates(tmp_path, "area", f"package/{name}.py"), 3) for name in ("one", "two"))
    assert [mutant.name for mutant in first] == [mutant.name for mutant in second]
    assert len({mutant.before for mutant in first}) == 3  # one of a line


def test_a_fault_is_found_by_its_function_and_line_and_missed_when_they_are_gone(tmp_path: Path) -> None:
    made(tmp_path, "one.py", SOURCE)
    fault = Fault("area", "admit", "self.count += 1", "self.count += 2")
    assert locate(tmp_path, "package", fault).apply(tmp_path).decode() == SOURCE.replace("count += 1", "count += 2")
    with pytest.raises(FaultGone, match=r"0 lines of other\(\) in package are 'self.count \+= 1'"):
        locate(tmp_path, "package", fault._replace(function="other"))
    made(tmp_path, "two.py", SOURCE)
    with pytest.raises(FaultGone, match="2 lines of admit"):
        locate(tmp_path, "package", fault)
