"""Plots as SVG text, drawn by hand: the report is one file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from values to pixels."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Sequence[float], logarithmic: bool = False) -> Axis:
        """From zero (or the power of ten below the smallest positive value) to just above the largest."""
        if logarithmic:
            positive = [value for value in values if value > 0] or [1.0]
            return cls(
                10 ** math.floor(math.log10(min(positive))), 10 ** math.ceil(math.log10(max(positive)) + 1e-9), True
            )
        return cls(0.0, max([*values, 0.0]) * 1.05 or 1.0)

    def share(self, value: float) -> float:
        if not self.logarithmic:
            return (value - self.low) / (self.high - self.low)
        return math.log10(max(value, self.low) / self.low) / max(1e-9, math.log10(self.high / self.low))

    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        rough = (self.high - self.low) / 5
        size = 10 ** math.floor(math.log10(rough))
        size *= next(factor for factor in (1, 2, 5, 10) if factor * size >= rough)
        return [size * index for index in range(int(self.high / size) + 1)]


def scatter(series: Mapping[str, Points], x_label: str, y_label: str, log_y: bool = True) -> str:
    """One dot per point; each series has its colour."""
    x, y = _axes(series, log_y=log_y)
    marks = [
        f'<circle cx="{_x(x, px):.1f}" cy="{_y(y, py):.1f}" r="2.2" fill="{colour}" fill-opacity="0.6"/>'
        for colour, points in zip(_colours(series), series.values(), strict=True)
        for px, py in points
    ]
    return _figure(series, x, y, x_label, y_label, marks)


def lines(series: Mapping[str, Points], x_label: str, y_label: str, log_x: bool = False) -> str:
    x, y = _axes(series, log_x=log_x)
    marks = []
    for colour, points in zip(_colours(series), series.values(), strict=True):
        path = " ".join(f"{_x(x, px):.1f},{_y(y, py):.1f}" for px, py in points)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return _figure(series, x, y, x_label, y_label, marks)


def cumulative(values: Sequence[float], most_points: int = 300) -> Points:
    """The share of values at or below each value, thinned to what a plot can show."""
    ordered = sorted(values)
    stride = max(1, len(ordered) // most_points)
    kept = [(ordered[i], (i + 1) / len(ordered)) for i in range(0, len(ordered), stride)]
    return [*kept, (ordered[-1], 1.0)] if ordered else []


def _axes(series: Mapping[str, Points], log_x: bool = False, log_y: bool = False) -> tuple[Axis, Axis]:
    points = [point for of_one in series.values() for point in of_one]
    return Axis.over([px for px, _ in points], log_x), Axis.over([py for _, py in points], log_y)


def _colours(series: Mapping[str, Points]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(series))]


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _figure(series: Mapping[str, Points], x: Axis, y: Axis, x_label: str, y_label: str, marks: list[str]) -> str:
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} by {escape(x_label)}">']
    for tick in y.ticks():
        at = _y(y, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x.ticks():
        parts.append(f'<text x="{_x(x, tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(12 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    parts.extend(marks)
    for index, (colour, name) in enumerate(zip(_colours(series), series, strict=True)):
        at = TOP + 12 + index * 15
        parts.append(f'<rect x="{LEFT + 10}" y="{at - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 25}" y="{at}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])
