"""How frameworks train without a word, for scripts that train with them on a CPU and on a GPU."""

from typing import Any


def quiet_lightning(folder: str) -> dict[str, Any]:
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return {"default_root_dir": folder, **dict.fromkeys(silent, False)}


def quiet_transformers(folder: str) -> dict[str, Any]:
    none = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    return {"output_dir": folder, "remove_unused_columns": False, "label_names": ["y"]} | none
