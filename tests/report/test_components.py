"""The table of groups and choices: every choice with its formula and cost, and the README's, which names them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from modernllm.config.compose import CONFIG_DIR
from modernllm.config.tree import default_choices, read_tree
from modernllm.report.components import BEGIN, END, NOTES, choices, entries, formula, markdown, text, with_choices

ROOT = Path(__file__).parents[2]
SIZE = ["size=nano", "model.n_layers=2"]


def test_each_choice_says_its_formula_and_costs_what_it_costs() -> None:
    rows = {row.choice: row for row in entries(SIZE, ["attention", "moe"])}
    assert {row.choice for row in rows.values() if row.group == "moe"} == {"topk", "topk_lossfree", "none"}
    assert rows["mqa"].formula == "One key and value head for all query heads (Shazeer, 2019)"
    per_layer, table = 4 * 64 * 64 + 3 * 64 * 168 + 2 * 64, 259 * 64
    assert rows["mha"].parameters == rows["mha"].active == 2 * per_layer + 64 + 2 * table
    assert rows["mha"].flops == 2 * (2 * (per_layer - 128 + 2 * 64 * 32.5) + table)
    experts = 2 * 3 * 64 * 168
    assert rows["topk"].parameters - rows["mha"].parameters == 7 * experts + 2 * 8 * 64
    assert rows["topk"].active - rows["mha"].parameters == experts + 2 * 8 * 64
    written = list(text(list(rows.values())))
    assert written[:2] == ["", "attention"]
    assert any("topk " in line and f"({rows['topk'].active:,} active)" in line for line in written)
    assert f"| `attention` | `mha` | {rows['mha'].description} | {rows['mha'].parameters:,} |" in "".join(
        markdown(list(rows.values()))
    )


def test_what_is_no_class_of_ours_speaks_for_itself() -> None:
    assert formula("torch.nn.Identity") == "torch.nn.Identity"
    assert formula(None) == ""


def test_every_group_and_choice_has_its_place_in_the_table() -> None:
    rows = {line.split("|")[1].strip(" `"): line.split("|")[2] for line in list(choices())[2:]}
    tree, defaults = read_tree([CONFIG_DIR]), default_choices()
    assert set(rows) == set(defaults)
    for group, row in rows.items():
        names = re.findall(r"`(\w+)`", row.partition(":")[0])
        assert (sorted(names), names[0]) == (sorted(tree[group]), defaults[group])
        assert (":" in row) == (group in NOTES)


def test_the_table_stands_between_its_marks() -> None:
    before = f"# Title\n\n{BEGIN}\n| old |\n{END}\nafter\n"
    after = with_choices(before)
    assert after.startswith(f"# Title\n\n{BEGIN}\n| group |")
    assert after.endswith(f"|\n{END}\nafter\n")
    assert "old" not in after
    assert with_choices(after) == after
    with pytest.raises(ValueError, match="the table of choices stands between"):
        with_choices("# Title\n")


def test_the_script_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "some.md"
    file.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    words = [sys.executable, str(ROOT / "scripts" / "components.py"), f"into={file}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert file.read_text(encoding="utf-8") == "\n".join((BEGIN, *choices(), END, ""))
