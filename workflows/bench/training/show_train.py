"""Prints the result of ``hotset bench train``."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_SETTING = ("batch_size", "embedding_dim")


def show_train(result: dict[str, Any], console: Console) -> None:
    """Print the contestants, then the parts of a step, one table for each batch size and dim."""
    machine = result["machine"]
    console.print(f"{machine['cpu']}, load {machine['load_average']:.1f} at the beginning")
    for step in result.get("steps", []):
        setting = f"batch size {step['batch_size']:,}, dim {step['embedding_dim']}"
        device = result["settings"]["device"]
        console.print(f"{setting}, on {device}: {1000 * step['us']:,.1f} ns/sample as trained")
        of_step = [part for part in result["parts"] if all(part[key] == step[key] for key in _SETTING)]
        _show_device_parts(of_step, console)
    # One table for each batch size and dim, the settings in the order in which they were measured.
    ratios = {_key(ratio): ratio for ratio in result["ratios"]}
    settings = dict.fromkeys((r["batch_size"], r["embedding_dim"]) for r in result["contestants"])
    for batch_size, dim in settings:
        table = Table(
            title=f"batch size {batch_size:,}, dim {dim}", title_justify="left", box=None, pad_edge=False
        )
        table.add_column("us/sample")
        for column in ("threads", "wall", "CPU", "wall ratio", "CPU ratio"):
            table.add_column(column, justify="right")
        for record in result["contestants"]:
            if (record["batch_size"], record["embedding_dim"]) == (batch_size, dim):
                table.add_row(*_cells(record, ratios[_key(record)]))
        console.print(table)
        parts = [p for p in result["parts"] if (p["batch_size"], p["embedding_dim"]) == (batch_size, dim)]
        for dtype in dict.fromkeys(part["dense_dtype"] for part in parts):
            _show_parts(dtype, [part for part in parts if part["dense_dtype"] == dtype], console)


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[key] for key in ("name", "batch_size", "embedding_dim", "threads"))


def _cells(record: dict[str, Any], ratio: dict[str, Any]) -> list[str]:
    return [
        record["name"],
        str(record["threads"]),
        f"{record['wall_us']:.2f}",
        f"{record['cpu_us']:.2f}",
        f"{ratio['wall_ratio']:.2f}",
        f"{ratio['cpu_ratio']:.2f}",
    ]


def _show_device_parts(parts: list[dict[str, Any]], console: Console) -> None:
    if not parts:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("part of a step, by itself")
    for column in ("ns/sample", "lower bound", "times it", "bound by"):
        table.add_column(column, justify="right")
    for part in parts:
        times = f"{part['us'] / part['floor_us']:.1f}" if part["floor_us"] else "-"
        floor = f"{1000 * part['floor_us']:.2f}" if part["floor_us"] else "-"
        table.add_row(part["part"], f"{1000 * part['us']:.2f}", floor, times, part["bound_by"])
    sums = [1000 * sum(part[name] for part in parts) for name in ("us", "floor_us")]
    table.add_row("sum", f"{sums[0]:.2f}", f"{sums[1]:.2f}", f"{sums[0] / sums[1]:.1f}", "", style="bold")
    console.print(table)


def _show_parts(dtype: str, parts: list[dict[str, Any]], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"part of hotset's step, {dtype}, one thread")
    for column in ("us/sample", "lower bound", "bound by"):
        table.add_column(column, justify="right")
    for part in parts:
        table.add_row(part["part"], f"{part['us']:.2f}", f"{part['floor_us']:.2f}", part["bound_by"])
    # The parts add up to a step, as their lower bounds do.
    sums = [sum(part[name] for part in parts) for name in ("us", "floor_us")]
    table.add_row("sum", f"{sums[0]:.2f}", f"{sums[1]:.2f}", "", style="bold")
    console.print(table)
