# SPDX-License-Identifier: Apache-2.0
"""Opens models on onnxruntime, with threads that do not spin while they wait."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lockgate.errors import ConfigError
from lockgate.models.weights import find_weights

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Model = TypeVar("Model")
GRAPHS = Path(__file__).parent / "graphs"  # `make graphs` writes them

# Read when onnxruntime is imported. Without it, onnxruntime reports its use and writes to the home directory.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def find_missing_package() -> str | None:
    """Returns the first package that models need and that is not installed."""
    return next((name for name in ("numpy", "onnxruntime") if find_spec(name) is None), None)


def load_model(data_dir: Path, name: str, load: Callable[[Path], Model]) -> Model:
    """Applies `load` to the folder of a package's weights; raises ConfigError with a message for the operator."""
    folder = find_weights(data_dir, name)
    if folder is None:
        raise ConfigError(f"no weights of `{name}` in {data_dir}: run `lockgate setup`", source=str(data_dir))
    if missing := find_missing_package():
        message = f"the detector `{name}` needs {missing}: pip install 'lockgate[detectors]'"
        raise ConfigError(message, source="plugins", key=name)
    try:
        return load(folder)
    except ConfigError:
        raise
    except Exception as error:  # onnxruntime's errors have no other common parent
        message = f"the weights of `{name}` cannot be used ({error}): run `lockgate setup`"
        raise ConfigError(message, source=str(folder)) from error


def read_graph(name: str) -> bytes:
    """Reads a graph that the package ships; it has only the places of the weights in a weight file."""
    return (GRAPHS / name).read_bytes()


def open_session(model: bytes | Path, weights: Path, threads: int = 1) -> "InferenceSession":
    """Opens a model from a file, or from a graph whose weights are in files of the folder `weights`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors are raised: nothing goes to standard error
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
