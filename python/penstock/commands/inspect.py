"""``penstock inspect FILES``: lists the contents of files of any format."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from .. import _engine
from ..base.file_kinds import is_tar
from . import bytes_text
from .files import Feature, Survey, counted, find, looks_like, surveys

_TYPES = ("none", "bytes", "float32", "int64")
_BYTES = 1
# Strings of equal length, and at least this long, are probably raw values; others are words.
_RAW_BYTES = 64


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="say what is in files of records, tables, arrays and images",
        description="Says what is in TFRecord files, tar archives of samples, Parquet files, "
        "arrays (npy, npz, IDX, HDF5) and folders of images: "
        "records, sizes, damage, and the features of tf.Examples with the parse_example that takes "
        "them, the fields of samples, or the columns. Reads TFRecord files and archives whole; of "
        "the others the footers and headers.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a path, or a pattern in quotes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    paths = find(options.files)
    total = Survey(counted(len(paths), "file"))
    archives = Survey("")
    width = max(len(_engine.without_secrets(path)) for path in (*paths, total.path))
    each = []
    if not options.json:
        print(header(width))
    for found in surveys(paths, features=True):
        total.add(found)
        if is_tar(found.path):
            archives.add(found)
        if options.json:
            each.append(found)
            continue
        print(line_of(found, width), flush=True)
        hint = looks_like(found)
        if hint:
            print(f"  {hint}")
    if options.json:
        print(json.dumps({"files": [_plain(found) for found in each]}, indent=1))
        return 0
    if len(paths) > 1:
        print(line_of(total, width))
    if total.columns:
        print()
        print("\n".join(columns_of(total)))
    if archives.features:
        print()
        print("\n".join(fields_of(archives)))
    elif total.features:
        print()
        print("\n".join(features_of(total)))
    return 0


def _plain(found: Survey) -> dict[str, Any]:
    plain = {**asdict(found), "mean": found.mean}
    for feature in plain["features"].values():
        counts = zip(_TYPES, feature["types"], strict=True)
        feature["types"] = {name: count for name, count in counts if count}
    return plain


# ---- printing ------------------------------------------------------------------------------------


def header(width: int) -> str:
    return (
        f"{'file':{width}}{'records':>13}{'size':>11}{'smallest':>11}{'mean':>11}{'largest':>11}"
        f"{'damage':>9}"
    )


def line_of(found: Survey, width: int) -> str:
    sizes = (found.smallest, found.mean, found.largest)
    texts = [bytes_text(size) if found.records and found.largest else "-" for size in sizes]
    return (
        f"{found.path:{width}}{found.records:>13,}{bytes_text(found.file_bytes):>11}"
        f"{''.join(f'{text:>11}' for text in texts)}{found.lost_places:>9,}"
    )


def columns_of(total: Survey) -> list[str]:
    """The columns of Parquet files and arrays, and the call that reads them."""
    width = max(len("column"), *(len(name) for name in total.columns))
    table = [f"{name:{width}}  {kind}" for name, kind in total.columns.items()]
    if total.call:
        return [f"{'column':{width}}  type", *table, "", total.call]
    groups = counted(total.row_groups, "row group")
    return [
        f"{groups} of up to {total.group_rows:,} rows, {bytes_text(total.group_bytes)} decoded:",
        f"{'column':{width}}  type",
        *table,
        "",
        'penstock.Dataset.parquet(...).shuffle(seed=0, block="auto", window=4)',
    ]


def fields_of(total: Survey) -> list[str]:
    """The table of the fields of samples, and the call that reads those that all have."""
    lines = [f"the fields of {total.records:,} samples:", *_table("field", total.features)]
    fields = [name for name, field in total.features.items() if field.records == total.records]
    return [*lines, "", f"penstock.Dataset.tar(..., fields={fields})"]


def _table(title: str, features: dict[str, Feature]) -> list[str]:
    width = max(len(title), *(len(name) for name in features))
    return [
        f"{title:{width}}  {'type':9}{'in records':>13}  values",
        *(
            f"{name:{width}}  {type_of(feature):9}{feature.records:>13,}  {form_of(feature)}"
            for name, feature in sorted(features.items())
        ),
    ]


def features_of(total: Survey) -> list[str]:
    """The table of features, and the `parse_example` for them."""
    lines = [f"{total.examples:,} of {total.records:,} records are tf.Examples; their features:"]
    names = sorted(total.features)
    lines += [*_table("feature", total.features), "", "penstock.parse_example({"]
    for name in names:
        feature = total.features[name]
        declared = declaration_of(feature)
        rare = feature.records - feature.types[0] < total.examples
        note = "  # not in all records: give default=" if rare else ""
        if declared:
            lines.append(f"    {name!r}: {declared},{note}")
        else:
            lines.append(f"    # {name!r} has {type_of(feature)}")
    lines.append("})")
    if total.sequences:
        lines.append(f"{total.sequences:,} of them have lists of steps, which are not shown.")
    return lines


def type_of(feature: Feature) -> str:
    names = [name for name, count in zip(_TYPES, feature.types, strict=True) if count]
    return " or ".join(names)


def form_of(feature: Feature) -> str:
    text = _between(feature.values)
    if feature.types[_BYTES]:
        text += f", of {_between(feature.bytes)} bytes"
        if feature.values != (1, 1):
            text += " together"
    return text


def _between(span: tuple[int, int]) -> str:
    least, most = span
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def declaration_of(feature: Feature) -> str:
    """The feature's declaration for `parse_example`; empty if records differ in its type."""
    kinds = [number for number in (1, 2, 3) if feature.types[number]]
    if len(kinds) != 1:
        return ""
    least, most = feature.values
    name = f"penstock.{_TYPES[kinds[0]]}"
    if kinds[0] == _BYTES:
        if (least, most) != (1, 1):
            return f"{name}(many=True)"
        length, longest = feature.bytes
        return f"{name}({length})" if length == longest >= _RAW_BYTES else f"{name}()"
    if least != most:
        return f"{name}(ragged=True)"
    return f"{name}()" if most == 1 else f"{name}({most})"
