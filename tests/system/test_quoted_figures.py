"""Every figure that pages quote from a result file is computed from that file here; no other is quoted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest

from hotset.pipeline.statistics.coverage import CHOSEN, FAE
from hotset.stats.replication import Network
from hotset.workflows.bench.ranks import RANK_BATCH

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {
    "README.md": 30,
    "docs/benchmarks.md": 280,
    "docs/checkpoints.md": 4,
    "docs/devices.md": 30,
    "docs/papers.md": 40,
    "docs/placements.md": 90,
}
"""For each page that quotes results, how many of its numbers are compared at least."""
PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
Result = Any
MIB, GIB = 1024**2, 1024**3


def preprocess(result: Result) -> list[str]:
    ratios = result["ratios"]
    return [
        f"{ratios['polars read_csv / hotset parse, kept']['wall']:.1f}x",
        f"{result['ratio_total']:.2f}x",
        f"{result['samples_per_second']:,.0f}",
        f"{result['data']['num_samples'] / 1e6:.0f} M",
        *(f"{ratio:.2f}x" for ratio in result["processes"]["ratio"].values()),
        *(f"{each['wall_seconds']:.2f} s" for each in result["processes"]["seconds"].values()),
    ]


def dlrm(result: Result) -> list[str]:
    samples = result["data"]["samples"]
    return [
        f"{result['ratio_cpu']:.0f}x",
        f"{result['ratio_total']:.0f}x",
        f"{samples['hotset']:,}",
        f"{samples['dlrm']:,}",
    ]


def growth(result: Result) -> list[str]:
    found: list[str] = []
    for run in result["runs"]:
        found += [
            f"{run['num_samples'] / 1e6:.0f} M",
            f"{run['samples_per_second']:,.0f}",
            f"{1e6 * run['cpu_seconds'] / run['num_samples']:.2f} µs",
            f"{1e6 * run['user_seconds'] / run['num_samples']:.2f} µs",
            f"{1e6 * run['stages']['pack']['user_seconds'] / run['num_samples']:.2f} µs",
            f"{run['peak_anonymous_bytes'] / MIB:,.0f} MiB",
            f"{run['polars']['samples_per_second']:,.0f}",
            f"{run['polars']['peak_anonymous_bytes'] / MIB:,.0f} MiB",
        ]
    return found


def exchange(result: Result) -> list[str]:
    (four,) = (found for found in result["ranks"] if found["ranks"] == 4)
    settings = result["settings"]
    figures = four["rows_per_sample"].values()
    return [
        f"{settings['samples'] / 1e6:.0f} M",
        f"{RANK_BATCH:,}",
        *(f"{figure:.{digits}f}" for figure in figures for digits in (1, 2)),
    ]


def engines(result: Result) -> list[str]:
    assert result["faults"] == []
    found = [each for row in result["runs"] for each in row["from_hotset"]]
    assert max(each["first_losses"] for each in found) < 1e-7
    return [
        *(f"{ranks}" for ranks in result["settings"]["ranks"]),
        "20 losses within 1e-7",
        f"{result['settings']['steps']} steps",
        f"{max(each['all_losses'] for each in found):.3f}",
        f"{max(each['auc'] for each in found):.4f}",
    ]


def spy(result: Result) -> list[str]:
    assert result["faults"] == []
    ratios = [row[kind]["ratio"] for row in result["spied"] for kind in ("hot_only", "mixed") if kind in row]
    error = max(abs(ratio - 1) for ratio in ratios if ratio is not None)
    return [*(f"{ranks}" for ranks in result["settings"]["ranks"]), f"{100 * error:.3f}%"]


def full_kaggle(result: Result) -> list[str]:
    (run,) = result["runs"]
    samples = run["result"]["samples"]
    hot_share = samples["hot_only"] / (samples["hot_only"] + samples["mixed"])
    return [
        f"{run['num_samples']:,}",
        f"{run['log_bytes'] / 1e9:.1f} GB",
        f"{run['wall_seconds']:.1f} s",
        f"{run['peak_anonymous_bytes'] / GIB:.1f} GiB",
        f"{run['written_bytes'] / 1e9:.1f} GB",
        f"{run['samples_per_second']:,.0f}",
        f"{1e6 * run['user_seconds'] / run['num_samples']:.2f} µs",
        f"{run['result']['hot_bytes'] / MIB:.0f} MiB",
        f"{run['result']['row_bytes']} bytes",
        f"{100 * hot_share:.1f}%",
    ]


def scores(result: Result) -> list[str]:
    assert max(result["largest_difference"].values()) < 1e-12
    return [f"{sum(result['cases'].values()):,}"]


def defaults(result: Result) -> list[str]:
    """AUC by batch size: without options, of the best setting, and of the best with SGD for both."""
    samples = sum(result["samples"].values())
    found = [f"{samples:,}"]
    for batch_size in result["settings"]["batch_sizes"]:
        runs = [run for run in result["runs"] if run["batch_size"] == batch_size]
        usual = [run["auc"] for run in runs if run["optimizers"] == "defaults"]
        tried = [run for run in runs if run["optimizers"] != "defaults"]
        assert len(usual) == len(result["settings"]["seeds"]) == 3
        found += [
            f"{batch_size:,}",
            f"{mean(usual):.4f}",
            f"{max(run['auc'] for run in runs if run['seed'] == 0):.4f}",
            f"{max(run['auc'] for run in tried if run['optimizers'].startswith('sgd')):.4f}",
            f"{len(tried)}",
        ]
    return found


def quality(result: Result) -> list[str]:
    """Mean AUC of each placement, and its deviation over seeds under the default placement."""
    auc, seeds = result["auc"], result["seeds"]
    assert auc["lookahead"] == auc.get("all-fast", auc["lookahead"]) and len(seeds) == 5
    samples = f"{sum(result['samples'].values()):,}"
    means = [f"{result['mean_auc'][name]:.4f}" for name in ("lookahead", "fae")]
    return [*means, f"{stdev(auc['lookahead']):.4f}", samples]


def coded_quality(result: Result) -> list[str]:
    assert len(result["seeds"]) == 5
    coded = ("int8", "bounded:0.03")
    size = re.search(r"generated-(\d+)m\.tsv", result["data"])
    return [
        *([f"{size[1]} M samples"] if size else []),
        *(f"{abs(result['mean_difference'][name]):.5f}" for name in coded),
        *(f"{result['largest_difference'][name]:.5f}" for name in coded),
        *(f"{result['bytes_per_sample'][name]:.0f} bytes" for name in ("none", *coded)),
    ]


def open_shards(result: Result) -> list[str]:
    """Files, and seconds to open them and to the end of the first step."""
    seconds = (f"{result[name]:.1f} s" for name in ("seconds_to_open", "seconds_to_first_step"))
    return [f"{result['settings']['open_files']:,}", *seconds]


def torch_quality(result: Result) -> list[str]:
    """Mean AUC with its deviation over seeds, and differences from plain torch with the same seed."""
    assert len(result["seeds"]) == 5
    return [
        f"{sum(result['samples'].values()):,}",
        *(f"{each:.4f}" for each in result["mean_auc"].values()),
        *(f"{each:.4f}" for each in result["deviation_auc"].values()),
        *(f"{each:+.4f}" for each in result["mean_auc_difference"].values()),
        *(f"{each:.4f}" for each in result["deviation_auc_difference"].values()),
    ]


def examples(result: Result) -> list[str]:
    """Mean AUC of the examples in both programs, how far seeds differ, and conversions."""
    compared = [of_label for of_model in result["auc"].values() for of_label in of_model.values()]
    compared += result["real"]["auc"].values()
    of_seeds = [each.get("auc") or each["values"] for each in compared]
    pairs = [zip(each["hotset"], each["plain torch"], strict=True) for each in of_seeds]
    largest = max(abs(one - other) for of_model in pairs for one, other in of_model)
    found = [f"{count:,}" for of_log in (result, result["real"]) for count in of_log["samples"].values()]
    found += [f"{ceil(1e4 * largest) / 1e4:.4f}", *(f"{best:.4f}" for best in result["best"].values())]
    for each in (*compared, *result["conversions"].values()):
        found += [f"{each[key][name]:.4f}" for key in ("mean", "deviation") for name in each["mean"]]
        found += [f"{each['best']:.4f}"] if "best" in each else []
    return found


def against_torch(result: Result) -> list[str]:
    """Mean AUC of hotset and of plain torch by case, and differences from hotset with their intervals."""
    assert result["settings"]["seeds"] == 5
    cases = result["cases"]
    found = [f"{samples:,}" for log in result["logs"].values() for samples in log["samples"].values()]
    for score in ("auc", "log_loss"):
        found += [f"{each:.4f}" for case in cases for each in case[f"mean_{score}"].values()]
        together = [differences[score] for differences in result["together"].values()]
        for differences in [case[f"{score}_difference"] for case in cases] + together:
            found += [f"{each:+.4f}" for interval in differences.values() for each in interval.values()]
    return [*found, "95%", *(f"{rates['embedding_lr']:g}" for rates in result["recipes"].values())]


def models(result: Result) -> list[str]:
    auc = result["auc"]
    assert all(auc[f"{name}, lookahead"] == auc[f"{name}, all-fast"] for name in ("dlrm", "dcnv2"))
    return [f"{each:.4f}" for each in result["mean_auc"].values()]


def first_hour(result: Result) -> list[str]:
    """Seconds of a first and of a later demo."""
    return [f"{result['demo'][name]['wall_seconds']:.1f} s" for name in ("cold", "warm")]


def checkouts(result: Result) -> list[str]:
    ratios = [each["cpu_ratio"] for each in result["train"]]
    return [
        f"{result['preprocess']['samples'] / 1e6:.0f} M",
        f"{result['preprocess']['cpu_ratio']:.2f}x",
        f"{min(ratios):.2f}",
        f"{max(ratios):.2f}",
        *map(str, result["settings"]["embedding_dims"]),
    ]


def checkouts_of_steps(result: Result) -> list[str]:
    ratios = [each["cpu_ratio"] for each in result["train"]]
    settings = [
        f"{each:,}" for name in ("batch_sizes", "embedding_dims") for each in result["settings"][name]
    ]
    return [f"{min(ratios):.2f}", f"{max(ratios):.2f}", *settings]


def whole_processes(result: Result) -> list[str]:
    """Ratios of `preprocess` as a process, by CPU time and by the clock."""
    return [f"{result['preprocess'][f'{clock}_ratio']:.2f}x" for clock in ("cpu", "wall")]


def logs(result: Result) -> list[str]:
    """Reading of other forms, and small parts."""
    settings, speeds, small = result["settings"], result["speeds"], result["small_parts"]
    found = []
    for format in ("csv", "parquet"):
        found += [
            f"{speeds[format]['over_other']['cpu']:.2f}x",
            f"{speeds[format]['over_polars']['cpu']:.2f}",
        ]
    found += [f"{small[name]['cpu']:.1f}" for name in ("groups_over_one", "files_over_one")]
    found += [f"{settings[name]:,}" for name in ("samples", "groups", "files")]
    return [*found, "40", "20", "66"]


def logs_memory(result: Result) -> list[str]:
    """Memory of logs of every form within 512 MiB, and within the least cap that each accepts."""
    found = result["memory"]
    assert {each["workers"] for each in found} == {1, 2} and result["settings"]["memory"] == [192, 512]
    assert {each["form"].partition(" ")[0] for each in found if each.get("refused_mib") == 512} == {"columns"}
    caps = [each["cap_mib"] for each in found]
    settings = [f"{result['settings'][name]:,}" for name in ("columns", "megabytes")]
    return [
        f"{max(each['of_cap'] for each in found):.2f}",
        f"{min(caps)}",
        f"{max(caps):,}",
        "512",
        *settings,
        "5,000",
        "2,000",
    ]


def fuzz_text(result: Result) -> list[str]:
    assert all(result[kind]["wrong"] == 0 for kind in ("lines", "fields"))
    return [f"{result[kind]['inputs']:,}" for kind in ("lines", "fields")]


def fuzz_logs(result: Result) -> list[str]:
    assert result["differences"] == 0 and result["duckdb"]
    equal = {who: 0 for who in ("hotset", "polars", "duckdb")}
    for what, count in result["outcomes"].items():
        who, _, outcome = what.split(" ", 2)
        equal[who] += count if outcome == "equal" else 0
    assert equal["hotset"] == result["files"]
    return [f"{count:,}" for count in equal.values()]


def window(result: Result) -> list[str]:
    """Return samples of logs, the worst excess of all results, and the worst CPU time by batch size."""
    names = ("window", "window-12m", "window-45m")
    cases = [case for name in names for case in read_result(name)["cases"]]
    costs = {
        size: [case["planning_microseconds"] for case in cases if case.get("batch_size") == size]
        for size in (128, 2048)
    }
    samples = result["settings"]["samples"]
    return [
        *(f"{each / 1e6:.0f}" for each in ([samples] if isinstance(samples, int) else samples)),
        f"{100 * max(case['excess'] for case in cases):.2f}%",
        *(f"{max(found):.2f}" for found in costs.values()),
        *(f"{size:,}" for size in costs),
    ]


def placements(result: Result) -> list[str]:
    """Bytes both ways together, and speeds by CPU time over that of all-fast."""
    (share,) = result["shares"]
    both = {
        name: sum(moved[f"to_{way}"] for way in ("fast", "slow")) for name, moved in share["bytes"].items()
    }
    aucs = {f"{run['auc']:.4f}" for rounds in share["rounds"].values() for run in rounds}
    assert len(aucs) == 1
    return [
        f"{100 * share['share']:.1f}%",
        f"{result['config']['samples'] / 1e6:.0f} M",
        f"{result['config']['embedding_dim']}",
        f"{both['lookahead']:,.0f} bytes",
        f"{both['hybrid-dedup']:,.0f}",
        f"{both['hybrid']:,.0f}",
        *(f"{speed:.2f}" for speed in share["cpu"].values()),
        *aucs,
    ]


def placement_plans(result: Result) -> list[str]:
    """Bytes each way by share of hot rows, and ratios of the bytes both ways."""
    config = result["settings"]
    found = [f"{config['samples'] / 1e6:.0f} M", f"{config['batch_size']:,}", f"{config['embedding_dim']}"]
    for share in result["shares"]:
        ratios = share["ratios"]
        found += [
            f"{100 * share['share']:.1f}%",
            f"{share['num_rows']:,}",
            *(f"{moved[way]:,.0f}" for moved in share["bytes"].values() for way in ("to_fast", "to_slow")),
            f"{ratios['hybrid / lookahead']:.1f}",
            f"{ratios['hybrid / lookahead, first uses fetched']:.1f}",
            f"{ratios['hybrid-dedup / lookahead']:.1f}",
            f"{100 * (ratios['lookahead / belady'] - 1):.0f}%",
        ]
    return found


def replication(result: Result) -> list[str]:
    settings, every = result["settings"], result["comparisons"]
    found = [
        f"{settings['samples'] / 1e6:.0f} M",
        f"{min(settings['batch_sizes']):,}",
        f"{max(settings['batch_sizes']):,}",
        f"{min(settings['budgets'])}",
        f"{max(settings['budgets'])} MiB",
        f"{min(each['saved_by_choice'] for each in every):.1%}",
        f"{max(each['saved_by_choice'] for each in every):.1%}",
        f"{max(each['excess'] for each in every):.2%}",
        # The speed that bytes are compared at.
        f"{Network().all_to_all_bytes_per_second / 1e9:.0f} GB/s",
    ]
    middle = [each for each in every if (each["batch_size"], each["hot_bytes"]) == (16384, 4 * MIB)]
    for each in middle:
        crossing = {name: split["crossing_kb"] for name, split in each["splits"].items()}
        found += [f"{each['devices']}", f"{each['batch_size']:,}", f"{each['hot_bytes'] // MIB} MiB"]
        found += [f"{number / 1e3:.3f} MB" for number in crossing.values()]
        found += [f"{each['fae_pays_from_us']:.0f} µs", f"{each['splits'][FAE]['hot_only_share']:.0%}"]
        found += [f"{crossing[FAE] / crossing[CHOSEN]:.1f}", f"{result['embedding_dim']}"]
    return found


def codecs(result: Result) -> list[str]:
    settings = result["settings"]
    found = [f"{settings['samples'] / 1e6:.0f} M", f"{settings['embedding_dim']}"]
    for part in result["slices"]:
        found.append(f"{part['samples']:,}")
        coders = ("bounded:0.03", "int8", "fp16")
        found += ["0.03", *(f"{part['ratios'][f'distinct rows, {name}']:.1f}" for name in coders)]
    return found


def train(result: Result) -> list[str]:
    by_hotset = [ratio["cpu_ratio"] for ratio in result["ratios"] if ratio["name"] == "hotset fp32"]
    found = [f"{min(by_hotset):.2f}x"]
    for run, ratio in zip(result["contestants"], result["ratios"], strict=True):
        keys = ("name", "batch_size", "embedding_dim", "threads")
        assert [run[key] for key in keys] == [ratio[key] for key in keys]
        found += [
            f"{run['batch_size']:,}",
            *(str(run[key]) for key in ("embedding_dim", "threads")),
            f"{run['wall_us']:.2f}",
            *(f"{ratio[kind]:.2f}x" for kind in ("wall_ratio", "cpu_ratio")),
        ]
    return found


def loopback(result: Result) -> list[str]:
    found = result["loopback"]
    assert found["has_equal_bits"]
    return [
        f"{found['batch_size']:,}, {result['settings']['embedding_dim']}",
        *(f"{each['step_seconds']:.3f}" for each in found["contestants"]),
        *(f"{each['over_one']:.2f}x" for each in found["contestants"]),
    ]


def pack_phases(result: Result) -> list[str]:
    assert result["equal_bytes"]
    passes, phases = (result["ways"][name] for name in ("passes", "two phases"))
    settings = result["settings"]
    return [
        f"{result['num_samples']:,}",
        f"{result['input_bytes'] / GIB:.1f} GiB",
        f"{settings['limit'] / MIB:.0f} MiB",
        f"{result['ratios']['wall']:.1f}x",
        f"{result['ratios']['cpu']:.1f}x",
        f"{passes['bytes_read'] / 1e9:.1f} GB",
        f"{phases['bytes_read'] / 1e9:.1f} GB",
        f"{settings['times']:.0f} {settings['rounds']}",
    ]


def larger_than_memory(result: Result) -> list[str]:
    settings = result["settings"]
    found = [
        f"{settings['memory'] * settings['times'] / GIB:.1f} GiB",
        f"{settings['memory'] / MIB:.0f} MiB",
        f"{settings['embedding_dim']}",
        f"{settings['batch_size']:,}",
    ]
    for share in result["shares"]:
        assert share["equal_bits"]
        runs = {run["name"]: run for run in share["contestants"]}
        ahead, mapped = runs["lookahead"], runs["mapped, random advice"]
        ratios, bounds = share["ratios"], share["bounds"]
        found += [
            f"{100 * share['cold_share']:.0f}%",
            *(f"{run['samples_per_second']:,.0f}" for run in runs.values()),
            f"{ratios['lookahead / mapped, random advice']:.2f}x",
            f"{bounds['in memory, no limit / mapped, random advice']:.2f}x",
            f"{ratios['lookahead / in memory, no limit']:.2f}",
            *(f"{ahead[way] / 1e6:.1f} MB" for way in ("bytes_read", "bytes_written")),
            *(f"{mapped[way] / 1e9:.2f} GB" for way in ("bytes_read", "bytes_written")),
        ]
    return found


def gpu_day(result: Result) -> list[str]:
    assert not result["checks_failed"] and {part["status"] for part in result["parts"]} == {"ok"}
    rows = result["rows"]
    found = [f"{row['samples_per_second'] / 1e6:.1f}" for row in rows if "placement" in row]
    for row in rows:
        if row.get("what") == "parts of a step, ns/sample":
            found += [f"{value:.1f}" for of in ("parts", "lower_bounds") for value in row[of].values()]
    num_tests = sum(check["part"] == "tests" and "::" in check["name"] for check in result["checks"])
    sizes = {row[key] for row in rows for key in ("embedding_dim", "batch_size") if key in row}
    return [*found, *(f"{size:,}" for size in sizes), f"{num_tests}", "33.8 million", "1.5%"]


def gpu_day_again(result: Result) -> list[str]:
    """A later day: all checks, ratios of turns, and the epoch that two placements trained."""
    assert all(check["is_right"] for check in result["checks"])
    (inputs,) = [row for row in result["rows"] if row.get("what") == "inputs of an epoch"]
    epochs = [row for row in result["rows"] if row.get("what") == "epoch"]
    assert len({row["weights"] for row in epochs}) == 1
    rows = [row for row in result["rows"] if row.get("batch_size") == 65_536 and "of_all_fast" in row]
    return [
        f"{len(result['checks'])}",
        *(f"{row['of_all_fast']:.2f}" for row in rows if row["placement"] in ("lookahead", "hybrid-dedup")),
        f"{65_536:,}",
        f"{inputs['samples'] / 1e6:.1f} million",
        "400,000",
        "1.5%",
        *(f"{row['training_seconds']:.1f}" for row in epochs),
        *(f"{row['whole_seconds']:.1f}" for row in epochs),
        *(f"{row['samples_per_second'] / 1e6:.1f}" for row in epochs),
        *(f"{row['auc']:.4f}" for row in epochs),
    ]


def kills(result: Result) -> list[str]:
    assert result["identical"] == result["folders"] and result["faults"] == []
    found = [f"{result['kills']} times", f"{result['folders']} folders"]
    if stall := result.get("stall"):
        found += [
            f"{stall['rows'] / 1e6:.0f} million",
            *(f"{median(stall[name]) / 1e3:.1f} s" for name in ("all_changed_ms", "copy_ms")),
            f"{median(stall['all_changed_longest_ms']):.0f} ms",
        ]
    return found


def orders(result: Result) -> list[str]:
    found = [
        f"{result['num_train_samples'] / 0.857142857 / 1e6:.0f} M",
        f"{result['num_train_samples'] / 0.857142857 / 1e3:.0f} k",
    ]
    for budget in result["budgets"]:
        found.append(
            f"{budget['bytes'] / MIB:.0f} MiB"
            if budget["bytes"] % MIB == 0
            else f"{budget['bytes'] / 1e6:.0f}"
        )
        if budget["published"] is not None:
            found.append(f"{100 * budget['published']:.0f}%")
        shares = {order: budget[order] for order in ("frequency", "peel", "fae-paper", "fae-code")}
        found += [f"{100 * one['hot_sample_share']:.1f}%" for one in shares.values() if one is not None]
        cold = [1 - shares[order]["hot_lookup_share"] for order in ("peel", "frequency")]
        if cold[1]:
            found.append(f"+{100 * (cold[0] / cold[1] - 1):.1f}%")
    return [*found, f"{result['row_bytes']} bytes", f"{result['num_train_samples'] / 1e6:.1f} M"]


QUOTED: dict[str, Callable[[Result], list[str]]] = {
    "preprocess-4m": preprocess,
    "dlrm-preprocess": dlrm,
    "growth": growth,
    "exchange": exchange,
    "replication": replication,
    "engines": engines,
    "spy": spy,
    "codecs-2m": codecs,
    "full-kaggle": full_kaggle,
    "train": train,
    "train-avx2": train,
    "train-dcnv2": train,
    "train-epyc": train,
    "links-loopback": loopback,
    "larger-than-memory": larger_than_memory,
    "pack-phases": pack_phases,
    "scores": scores,
    "defaults-real-110k": defaults,
    "defaults-generated-150k": defaults,
    "quality-real-110k": quality,
    "quality-real-110k-original": quality,
    "quality-models-real-110k": models,
    "quality-exchange-real-110k": coded_quality,
    "quality-exchange-generated-2m": coded_quality,
    "torch-quality-real-110k": torch_quality,
    "torch-quality-generated-200k": torch_quality,
    "against-torch": against_torch,
    "against-torch-layers": against_torch,
    "against-torch-adam": against_torch,
    "against-torch-sgd": against_torch,
    "examples": examples,
    "placements-2m": placements,
    "placements-2m-dim64": placements,
    "placements-plan-2m": placement_plans,
    "placements-plan-2m-original": placement_plans,
    "checkouts": checkouts,
    "checkouts-checksums": whole_processes,
    "checkouts-dim64": checkouts_of_steps,
    "first-hour": first_hour,
    "window": window,
    "logs": logs,
    "logs-memory": logs_memory,
    "fuzz-text": fuzz_text,
    "fuzz-logs": fuzz_logs,
    "window-12m": window,
    "window-45m": window,
    "gpu-day": gpu_day,
    "gpu-day-3": gpu_day_again,
    "open-shards": open_shards,
    "kills": kills,
    "train-kills": kills,
    "train-kills-ranks": kills,
    "train-kills-restarts": kills,
    "orders-2m": orders,
    "orders-real-110k": orders,
}
PUBLISHED = {
    # The paper: abstract, figure 5, tables 3, 4 and 7; its sample is 5% of the inputs.
    "2103.00686": "4 20 140 51% 65% 76% 4 5% 60.89 14.99 6.8% 0.802 0.802 1.52x",
    # Abstract; readme of its code, Criteo's Kaggle log.
    "2208.05321": "1.5% 0.7867 0.7768",
    # Abstract.
    "2411.01611": "6x",
    # Abstract; volume ratios of the better coder per table, from files of the repository.
    "2407.04272": "1.38x 12.25 15.7",
    "2011.05497": "",
}
"""Figures of papers, by their number on arXiv, and where they were read."""
SETTINGS = {
    "docs/commands.md": ("90%",),
    "docs/formats.md": ("5%", "99.9%"),
    "docs/logs.md": ("0.1%", "1%", "5%"),
    "docs/statistics.md": ("1%", "5%", "10%", "95%"),
}
"""Percentages of a page that are options, bounds or intervals, and no measurement."""
_NUMBER = re.compile(r"\+?\d[\d,]*(?:\.\d+)?")
_NOT_FIGURES = re.compile(r"\bH100\b|\[[^\]]*\]\([^)]*\)|`[^`]*`")
"""Links, code and a GPU have numbers of their own."""


def blocks_of(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each paragraph, list item or table row that quotes results, and the names of their files.

    A table without links of its own belongs to the paragraph before it.
    """
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    paragraphs = re.split(r"\n\s*\n|\n(?=- )", text)
    named: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith("|"):
            for row in paragraph.splitlines()[2:]:
                yield row, results_in(row) or named
            continue
        named = results_in(paragraph)
        yield paragraph, named


def results_in(text: str) -> list[str]:
    """Names of the result files that ``text`` links to, and numbers of papers."""
    return re.findall(r"(?:results/|arxiv\.org/abs/)([\w.-]+?)(?:\.json)?\)", text)


def figures_of(name: str) -> list[str]:
    return PUBLISHED[name].split() if name in PUBLISHED else QUOTED[name](read_result(name))


def read_result(name: str) -> Result:
    return json.loads((ROOT / f"workflows/results/{name}.json").read_text())


def numbers_in(text: str) -> list[str]:
    return [found.rstrip(",") for found in _NUMBER.findall(_NOT_FIGURES.sub(" ", text))]


@pytest.mark.parametrize("page", PAGES)
def test_each_number_beside_a_result_stands_in_it(page: str) -> None:
    wrong = []
    num_checked = 0
    for block, names in blocks_of(page):
        if not names:
            continue
        known = [number for name in names for figure in figures_of(name) for number in numbers_in(figure)]
        for number in numbers_in(block):
            num_checked += 1
            if number not in known:
                wrong.append(f"{number} is not in {', '.join(names)}: {block[:70]}…")
    assert wrong == [] and num_checked >= NUMBERS.get(page, 0)


@pytest.mark.parametrize("page", PAGES)
def test_ratios_and_shares_are_quoted_beside_their_result_only(page: str) -> None:
    """A measured ratio or percentage without a result file could not be checked."""
    stray = [
        (figure, block[:70])
        for block, names in blocks_of(page)
        if not names
        for figure in re.findall(r"\d[\d.]*x\b|\d[\d.]*%", _NOT_FIGURES.sub(" ", block))
        if figure not in SETTINGS.get(page, ())
    ]
    assert stray == [], "link the result file of a measurement; name an option or a bound in SETTINGS"


@pytest.mark.parametrize(
    ("page", "name", "first"),
    [
        ("README.md", "preprocess-4m", 0),
        ("docs/benchmarks.md", "preprocess-4m", 0),
        ("README.md", "dlrm-preprocess", 0),
    ],
)
def test_the_like_for_like_figure_comes_first(page: str, name: str, first: int) -> None:
    """Parsing against Polars that keeps its columns; dlrm by CPU seconds: the flattering figures follow."""
    block = next(block for block, names in blocks_of(page) if name in names)
    ratios = re.findall(r"\d[\d.]*x", block)
    assert ratios[0] == figures_of(name)[first]


def test_every_result_that_a_page_names_is_known() -> None:
    named = {name for page in PAGES for _, names in blocks_of(page) for name in names}
    assert named == {*QUOTED, *PUBLISHED}
