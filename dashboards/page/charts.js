// Lines over time, as SVG that stretches to its box. Where there are no samples there is no line but a hatched gap.

import { element } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 100;
const GAP_S = 2.5;
const BUCKETS = 150; // more points than this are only noise on a screen

function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// Runs of points without a break: none where a value is unknown or a second is missing.
export function runs(points) {
  const found = [];
  let run = null;
  let before = -Infinity;
  for (const [at, value] of points) {
    if (value === null || value === undefined) {
      run = null;
      continue;
    }
    if (run === null || at - before > GAP_S) found.push((run = []));
    run.push([at, value]);
    before = at;
  }
  return found;
}

// One point for each bucket of a long run: its worst, so that no peak is lost.
export function thinned(run, span, worst) {
  const width = span / BUCKETS;
  const found = new Map();
  for (const [at, value] of run) {
    const bucket = Math.floor(at / width);
    const kept = found.get(bucket);
    found.set(bucket, kept === undefined ? [at, value] : [at, worst(kept[1], value)]);
  }
  return [...found.values()];
}

// Stretches of time in which the server told nothing.
export function gaps(times, until) {
  const found = [];
  for (let at = 1; at < times.length; at += 1) {
    if (times[at] - times[at - 1] > GAP_S) found.push([times[at - 1], times[at]]);
  }
  if (times.length && until - times[times.length - 1] > 2 * GAP_S) found.push([times[times.length - 1], until]);
  return found;
}

export class Chart {
  // marks: [{ value, name }], drawn as lines under one label; below: values under it are hatched.
  // keys: [[className, name]] of the series; worst: of two values, the one that matters.
  constructor(figure, { title, format, marks = [], label = "", top = null, below = null, keys = [], worst = Math.max }) {
    Object.assign(this, { format, marks, top, below, title, worst });
    this.value = element("b");
    const caption = element("figcaption");
    const legend = element("span", "keys");
    caption.append(element("span", "", title), this.value, legend);
    for (const [className, name] of keys) legend.append(element("i", `key ${className}`, name));
    this.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.box = element("div", "plot");
    this.topLabel = element("span", "top");
    this.box.append(this.plot, this.topLabel);
    if (label) {
      this.label = this.box.appendChild(element("span", "mark", label));
      this.label.style.top = `${100 - 100 * (marks[0].value / top)}%`;
    }
    figure.replaceChildren(caption, this.box);
  }

  // series: [{ className, points: [[at_s, value]] }], the first is the one that counts.
  draw(series, now, span, times, words) {
    const highest = Math.max(0, ...series.flatMap(({ points }) => points.map(([, value]) => value ?? 0)));
    const top = this.top ?? nice(highest);
    const x = (at) => ((at - now + span) / span) * WIDTH;
    const y = (value) => HEIGHT - (Math.min(value, top) / top) * HEIGHT;
    const parts = gaps(times, now).map(([from, to]) =>
      svg("rect", { class: "gap", x: x(from), y: 0, width: Math.max(1, x(to) - x(from)), height: HEIGHT }));
    series.forEach(({ className, points }, index) => {
      for (const whole of runs(points)) {
        const run = thinned(whole, span, this.worst);
        const line = run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
        const last = `${x(run[run.length - 1][0]).toFixed(1)},${HEIGHT}`;
        const area = `M${x(run[0][0]).toFixed(1)},${HEIGHT}L${line}L${last}Z`;
        if (index === 0) parts.push(svg("path", { class: "area", d: area }));
        if (index === 0 && this.below !== null) parts.push(...this.#hatched(run, x, y));
        parts.push(svg("path", { class: `line ${className}`, d: run.length > 1 ? `M${line}` : `M${line}h1` }));
      }
    });
    for (const { value, name } of this.marks) {
      parts.push(svg("line", { class: `mark ${name}`, x1: 0, x2: WIDTH, y1: y(value), y2: y(value) }));
    }
    this.plot.replaceChildren(...parts);
    this.topLabel.textContent = this.top === null ? this.format(top) : "";
    this.value.textContent = words;
    const highestWords = this.format(highest);
    this.plot.setAttribute("aria-label", `${this.title}: now ${words}; at most ${highestWords} in ${span / 60} minutes`);
  }

  // What is under the limit is filled from the limit down to the line.
  #hatched(run, x, y) {
    const parts = [];
    let low = [];
    const close = () => {
      if (low.length > 1) {
        const line = low.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
        const limit = y(this.below).toFixed(1);
        const [first, last] = [x(low[0][0]).toFixed(1), x(low[low.length - 1][0]).toFixed(1)];
        parts.push(svg("path", { class: "low", d: `M${first},${limit}L${line}L${last},${limit}Z` }));
      }
      low = [];
    };
    for (const point of run) {
      if (point[1] < this.below) low.push(point);
      else close();
    }
    close();
    return parts;
  }
}

function nice(highest) {
  if (highest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest);
}
