"""`cookbook doctor` names what keeps CuTe DSL from working: other wheels, another package, an old version."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import cutlass
import pytest

from cookbook.measure import doctor
from cookbook.recipe import versions

PLACE = "nvidia_cutlass_dsl/lib/libcute_dsl_runtime.so"


def wheel(folder: Path, name: str, version: str, files: dict[str, str] | None = None) -> None:
    """What pip leaves of an installed wheel: its metadata, and the hashes of its files."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = [f"{file},sha256={value},10\n" for file, value in (files or {}).items()]
    (info / "RECORD").write_text("".join(lines), encoding="utf-8")


def of_cute(diagnoses: list[doctor.Diagnosis]) -> doctor.Diagnosis:
    (found,) = (each for each in diagnoses if each.what == "CuTe DSL")
    return found


@pytest.mark.parametrize(("other", "said"), [("aaa", ""), ("bbb", f"both have {PLACE} and 0 more")])
def test_two_wheels_with_other_content_in_one_place_are_named(tmp_path, other, said):
    wheel(tmp_path, "nvidia-cutlass-dsl", "4.5.2")
    wheel(tmp_path, "nvidia-cutlass-dsl-libs-base", "4.5.2", {PLACE: "aaa", "base.py": "ccc"})
    wheel(tmp_path, "nvidia-cutlass-dsl-libs-cu13", "4.5.2", {PLACE: other, "cu13.py": "ddd"})
    found = doctor.mixed_wheels(metadata.distributions(path=[str(tmp_path)]))
    assert found == (said and f"nvidia-cutlass-dsl-libs-base and nvidia-cutlass-dsl-libs-cu13 {said}")


def test_wheels_of_several_versions_are_named(tmp_path):
    wheel(tmp_path, "nvidia-cutlass-dsl", "4.8.1")
    wheel(tmp_path, "nvidia-cutlass-dsl-libs-base", "4.7.1")
    found = doctor.mixed_wheels(metadata.distributions(path=[str(tmp_path)]))
    assert found == "wheels of several versions: nvidia-cutlass-dsl 4.8.1, nvidia-cutlass-dsl-libs-base 4.7.1"


def test_the_wheels_that_are_here_belong_together(monkeypatch):
    found = of_cute(doctor.examine())
    assert found.status == doctor.OK and found.found == cutlass.__version__
    monkeypatch.setattr(doctor, "mixed_wheels", lambda installed: "two wheels")
    found = of_cute(doctor.examine())
    assert (found.status, found.found) == (doctor.LIMITED, f"{cutlass.__version__}; two wheels") and found.fix


def test_an_old_version_is_named_with_recipes_it_cannot_compile(monkeypatch, tmp_path):
    row = {"dsl": "4.5.2", "python": "3.11.7", "torch": "2.6.0", "date": "2026-01-02", "compiled": []}
    file = tmp_path / "versions.json"
    file.write_text(json.dumps([row | {"failed": {"hopper/tuned_gemm": "no such divisor"}}]), encoding="utf-8")
    monkeypatch.setattr(versions, "RECORD", file)
    monkeypatch.setattr(cutlass, "__version__", "4.5.3")
    found = of_cute(doctor.examine())
    assert (found.status, found.found) == (doctor.LIMITED, "4.5.3")
    assert found.means == "too old for hopper/tuned_gemm"
    assert found.fix == f"pip install 'nvidia-cutlass-dsl>={versions.OLDEST}'"


def test_the_package_of_nearly_the_same_name_is_named(tmp_path):
    wheel(tmp_path, "nvidia-cutlass", "4.2.0.0")
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cutlass" / "__init__.py").write_text("", encoding="utf-8")
    code = (
        f"import sys, json; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from cookbook.measure import doctor; print(json.dumps(doctor.to_json(doctor.examine())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    found = of_cute([doctor.Diagnosis(**each) for each in json.loads(done.stdout)["diagnoses"]])
    assert found.status == doctor.MISSING and found.found.startswith("nvidia-cutlass 4.2.0.0, which is another package")
    assert found.fix.startswith("pip uninstall nvidia-cutlass; pip install 'nvidia-cutlass-dsl>=")
