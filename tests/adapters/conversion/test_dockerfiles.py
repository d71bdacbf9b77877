"""Dockerfiles: what their commands and variables become is said, and counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.adapters.conversion.dockerfiles import dockerfile_becomes, is_dockerfile
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import NothingToConvertError
from fsdp_migrate.source.surroundings import find_configs


pytestmark = pytest.mark.any_torch


NEW = "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT t.py"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('CMD ["accelerate", "launch", "--use_fsdp", "t.py"]', "CMD, line 3"),
        ("RUN accelerate launch --use_fsdp t.py", "RUN, line 3"),
        ("ENTRYPOINT accelerate launch \\\n    --use_fsdp t.py", "ENTRYPOINT, line 3"),
        ("RUN accelerate launch \\  \n\n# two\n  --use_fsdp t.py", "RUN, line 3"),
        ("RUN accelerate launch \\\r\n  --use_fsdp t.py\r", "RUN, line 3"),
        ('CMD ["accelerate", "launch", \\\n  "--use_fsdp", "t.py"]', "CMD, line 3"),
        ("RUN <<EOF\nset -e\naccelerate launch --use_fsdp t.py\nEOF\nRUN ls", "RUN, line 3"),
        ("RUN cat <<< word\nRUN accelerate launch --use_fsdp t.py", "RUN, line 4"),
        ("RUN cat <<OPEN\nRUN accelerate launch --use_fsdp t.py", "RUN, line 4"),
        ("ONBUILD RUN accelerate launch --use_fsdp t.py", "RUN, line 3"),
        ("HEALTHCHECK --timeout=5s CMD accelerate launch --use_fsdp t.py", "CMD, line 3"),
        ('ENTRYPOINT ["accelerate", "launch"]\nCMD ["--use_fsdp", "t.py"]', "ENTRYPOINT, line 3"),
        ('ENTRYPOINT ["/go.sh"]\nCMD ["accelerate", "launch", "--use_fsdp", "t.py"]', "ENTRYPOINT, line 3"),
        ('ENTRYPOINT ["/go.sh"]\nCMD accelerate launch --use_fsdp t.py', "CMD, line 4"),
        ('ENTRYPOINT ["/go.sh"]\nFROM y\nCMD ["accelerate", "launch", "--use_fsdp", "t.py"]', "CMD, line 5"),
        ("RUN [broken\nRUN accelerate launch --use_fsdp t.py", "RUN, line 4"),
        ("ENV A='\nRUN accelerate launch --use_fsdp t.py", "RUN, line 4"),
    ],
)
def test_commands_of_an_image(line: str, where: str) -> None:
    said = dockerfile_becomes(f"FROM x\n# one\n{line}\n")
    assert f"The command in `{where}` becomes `" in said
    assert "accelerate launch --use_fsdp --fsdp_version 2" in " ".join(said.split())


@pytest.mark.parametrize(
    "line",
    [
        "ENV ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
        "ENV ACCELERATE_USE_FSDP true\nENV FSDP_SHARDING_STRATEGY SHARD_GRAD_OP",
        "ENV ACCELERATE_USE_FSDP=true \\\n    FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
        "ENV ACCELERATE_USE_FSDP=true \\\n    # zero 2\n    FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
        "ENV ACCELERATE_USE_FSDP=true\nENV FSDP_SHARDING_STRATEGY=2\nRUN echo $FSDP_SHARDING_STRATEGY",
    ],
)
def test_variables_of_an_image(line: str) -> None:
    assert "FSDP_RESHARD_AFTER_FORWARD=false" in dockerfile_becomes(f"FROM x\n{line}\n")


def test_a_config_that_is_copied_from_here_is_named() -> None:
    config = "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\n"
    said = dockerfile_becomes(f"FROM x\nCOPY <<'EOF' /a.yaml\n{config}EOF\nRUN ls\n")
    assert "The text in `COPY, line 2` is a config (accelerate)" in said


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("Dockerfile-gpu", True), ("dockerfile", True), ("dockerfile-run.yaml", False), ("Dockerfiles", False)],
)
def test_names_of_files_of_images(name: str, is_one: bool) -> None:
    assert is_dockerfile(Path(name)) == is_one


def test_a_file_of_an_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM x\nCMD accelerate launch --use_fsdp t.py\n")
    with pytest.raises(NothingToConvertError, match="a Dockerfile, which is not changed"):
        convert_config_file(path)
    assert [(each.state, NEW in each.message) for each in find_configs([tmp_path])] == [("unclear", True)]
    path.write_text("FROM x\n# no fsdp\nCMD python t.py\n")
    assert find_configs([tmp_path]) == []
    path.write_text("FROM x\nCMD accelerate launch --use_fsdp --fsdp_version 2 t.py\n")
    with pytest.raises(NothingToConvertError, match="No setting of FSDP1 was found in it"):
        convert_config_file(path)


@pytest.mark.parametrize(
    "lines",
    [
        "ARG SORT=SHARD_GRAD_OP\nRUN accelerate launch --use_fsdp --fsdp_sharding_strategy ${SORT} t.py",
        "ARG A=SHARD_GRAD_OP\nENV B=$A\nCMD accelerate launch --use_fsdp --fsdp_sharding_strategy $B t.py",
        'ARG FLAGS="--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP"\nCMD accelerate launch $FLAGS t.py',
    ],
)
def test_variables_of_the_image_count_in_its_commands(lines: str) -> None:
    """The strategy was said to be set nowhere in the file, and flags in a variable without their command."""
    said = dockerfile_becomes(f"FROM x\n{lines}\n")
    assert said.count("The command in") == 1
    assert "becomes `accelerate launch --use_fsdp --fsdp_reshard_after_forward false --fsdp_version 2" in said
    assert "is not set in this file" not in said


def test_flags_in_a_variable_that_no_command_here_takes_are_told() -> None:
    said = dockerfile_becomes('FROM x\nENV FLAGS="--use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP"\n')
    assert "The command in `FLAGS` becomes `--use_fsdp --fsdp_reshard_after_forward false" in said


def test_an_escaped_variable_is_the_shells_own() -> None:
    lines = "ARG SORT=SHARD_GRAD_OP\nRUN accelerate launch --use_fsdp --fsdp_sharding_strategy {}SORT t.py"
    said = [dockerfile_becomes(f"FROM x\n{lines.format(sign)}\n") for sign in ("$", "\\$")]
    assert ["--fsdp_reshard_after_forward false" in each for each in said] == [True, False]
