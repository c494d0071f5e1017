"""What the packages of Weights & Biases and MLflow find in the files of a run."""

import json
from pathlib import Path
from typing import Any


def history(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The run's id and its rows, by the package's own reader."""
    from wandb.proto import wandb_internal_pb2 as records
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    run_id, rows = "", []
    while (data := store.scan_data()) is not None:
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run_id = record.run.run_id
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return run_id, rows
