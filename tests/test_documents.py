"""What the documents say is so: blocks run, outputs are real, every word is listed."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console

import srifty
from srifty.cli.main import app, main
from srifty.reporting.plan_table import plan_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def demo_output() -> str:
    """What `make demo` prints, on a terminal of 80 columns, on the day the catalogue was put together."""
    profiles = srifty.sample_profiles("resnet50")
    plan = srifty.plan(profiles, samples=1281167 * 90, batch=1024, deadline_s=12 * 3600)
    screen = Console(file=io.StringIO(), width=80, highlight=False)
    screen.print(plan_table(plan, today=date(2026, 11, 29)))
    return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()) + "\n"


def test_the_readme_shows_the_demo_s_real_output():
    block = re.search(r"<!-- demo:.*?-->\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert block[1] == demo_output(), "run: python tests/test_documents.py"


def test_the_words_page_is_what_the_records_say():
    page = runpy.run_path(str(ROOT / "tools" / "write_words.py"))["page"]()
    assert (ROOT / "docs" / "words.md").read_text() == page, "run: python tools/write_words.py"


PYTHON_PAGES = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_in_the_documents_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    if "import torch" in page.read_text():
        pytest.importorskip("torch", reason="this page shows a model, which needs PyTorch")
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), scope)  # noqa: S102
    made = {"README.md": "make", "start.md": "plan"}[page.name]
    assert made in scope, "the page no longer makes what it is about"
    if page.name == "start.md":
        assert srifty.read(tmp_path / "plan.json", srifty.Plan) == scope["plan"]


def test_the_readme_s_own_model_can_be_profiled_and_its_profile_read(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="a profile needs PyTorch")
    readme = ROOT / "README.md"
    (tmp_path / "work.py").write_text(blocks(readme, "python")[0])
    (tmp_path / "job.toml").write_text(blocks(readme, "toml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["srifty", "profile", "job.toml", "--device", "cpu", "-o", "cpu.profile.json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    profile = srifty.read("cpu.profile.json", srifty.JobProfile)
    assert [timing.batch for timing in profile.timings] == [16, 32, 64, 128]
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == profile.trainable_bytes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documents_name_verbs_and_options_that_exist(page):
    import typer

    group = typer.main.get_command(app)
    lines = [
        line for block in blocks(page, "(?:sh)?") for line in block.splitlines() if line.startswith("srifty ")
    ]
    for line in lines:
        words = shlex.split(line, comments=True)
        for end in ("|", "--"):  # behind these it is another program's line
            words = words[: words.index(end)] if end in words else words
        verb = group.commands[words[1]]
        known = {option for parameter in verb.params for option in parameter.opts}
        for word in words[2:]:
            if word.startswith("-") and len(word) > 1:
                assert word in known, line


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


if __name__ == "__main__":  # write the demo's output into the README
    readme = ROOT / "README.md"
    text = re.sub(
        r"(<!-- demo:.*?-->\n```\n).*?(```)",
        lambda found: found[1] + demo_output() + found[2],
        readme.read_text(),
        flags=re.DOTALL,
    )
    readme.write_text(text)
