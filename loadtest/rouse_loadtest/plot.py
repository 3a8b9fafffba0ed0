"""Pictures of results, SVG or PNG by the name of their file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def bars(path: Path, title: str, unit: str, rows: Sequence[tuple[str, float]]) -> None:
    """Horizontal bars, the first on top, with their figures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(rows) + 1))
    names = [name for name, _ in rows][::-1]
    values = [value for _, value in rows][::-1]
    drawn = axes.barh(names, values, color="#4878a8")
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def lines(path: Path, title: str, x: str, y: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """One line a series."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, points in series.items():
        axes.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=name)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _save(figure, path)


def _save(figure: object, path: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same figures give the same file.
    dated = {".svg": {"Date": None}, ".png": {"Software": None}}[path.suffix]
    figure.savefig(path, bbox_inches="tight", metadata=dated, dpi=150)
    pyplot.close(figure)
