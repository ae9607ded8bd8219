// One path's engines: the hit ratio at a glance, five charts, a row for each replica.

import { Chart } from "./charts.js";
import { element, replaceIfChanged } from "./dom.js";
import { count, health, LEVELS, percent, rate, seconds, short } from "./words.js";

export class PathCard {
  constructor(engines, settings, template, host) {
    this.engines = engines;
    this.paths = engines === "hot" ? ["hot", "warm"] : ["cold"];
    this.marks = settings.kv_usage_marks;
    this.card = template.content.firstElementChild.cloneNode(true);
    this.card.id = `${engines}-engines`;
    this.find("h2").textContent = `${engines} engines`;
    this.card.setAttribute("aria-label", `${engines} engines`);
    this.find("caption").textContent = `Replicas of the ${engines} engines`;
    const low = settings.low_hit_ratio;
    const { alert, refuse_long, compress } = this.marks;
    const chart = (name, options) => new Chart(this.find(`[data-chart=${name}]`), options);
    this.hit = chart("hit", {
      title: "Prefix hit ratio", format: percent, top: 1, below: low, worst: Math.min,
      marks: [{ value: low, name: "limit" }], label: `low ${percent(low)}`,
    });
    this.kv = chart("kv", {
      title: "KV usage", format: percent, top: 1,
      marks: [
        { value: alert, name: "alert" }, { value: refuse_long, name: "refuse" }, { value: compress, name: "compress" },
      ],
      label: [alert, refuse_long, compress].map((mark) => Math.round(100 * mark)).join(" · ") + " %",
      keys: [["main", "least loaded"], ["replica", "each"]],
    });
    this.queue = chart("queue", { title: "Waiting", format: count, keys: [["main", "in ingress"], ["second", "in engines"]] });
    const second = this.paths.length > 1 ? [["third", "warm p95"]] : [];
    this.ttft = chart("ttft", { title: "First token", format: seconds, keys: [["main", "p95"], ["second", "p50"], ...second] });
    this.load = chart("load", { title: "Running", format: count, keys: [["main", "requests"]] });
    host.append(this.card);
  }

  find(selector) {
    return this.card.querySelector(selector);
  }

  draw(history, shown, span) {
    const now = history.now_s;
    const times = shown.map((sample) => sample.at_s);
    const engines = history.last?.engines[this.engines] ?? null;
    const line = (read, className = "main") => ({ className, points: shown.map((sample) => [sample.at_s, read(sample)]) });
    const of = (name) => (sample) => sample.engines[this.engines][name];
    const told = (path, name) => (sample) => sample.paths?.[path]?.[name] ?? null;
    const replicas = Object.entries(history.latest.replicas).filter(([, replica]) => replica.engines === this.engines);
    const each = replicas.length > 1
      ? replicas.map(([name]) => line((sample) => sample.replicas[name]?.kv_usage_ratio ?? null, "replica"))
      : [];

    this.find(".axis").firstElementChild.textContent = `${span / 60} min ago`;
    this.drawHead(history.latest.conditions[this.engines], engines);
    this.hit.draw([line(of("hit_ratio"))], now, span, times, percent(engines?.hit_ratio));
    this.kv.draw([line(of("kv_usage_ratio")), ...each], now, span, times, percent(engines?.kv_usage_ratio));
    this.queue.draw(
      [line(of("queued_requests")), line(of("waiting_requests"), "second")], now, span, times,
      `${count(engines?.queued_requests)} + ${count(engines?.waiting_requests)}`,
    );
    const ttft = [line(told(this.paths[0], "ttft_p95_s")), line(told(this.paths[0], "ttft_p50_s"), "second")];
    if (this.paths.length > 1) ttft.push(line(told("warm", "ttft_p95_s"), "third"));
    this.ttft.draw(ttft, now, span, times, seconds(history.last?.paths?.[this.paths[0]]?.ttft_p95_s));
    this.load.draw([line(of("running_requests"))], now, span, times, count(engines?.running_requests));
    this.drawReplicas(replicas, history.last);
  }

  drawHead(condition, engines) {
    this.card.dataset.health = condition.health;
    this.find(".ratio strong").textContent = percent(condition.hit_ratio);
    this.find(".health use").setAttribute("href", `#shape-${condition.health}`);
    this.find(".health span").textContent = health(condition);
    const level = engines?.level ?? null;
    const pressure = this.find(".pressure");
    pressure.dataset.level = level ?? "unknown";
    pressure.textContent = level === null ? "pressure unknown" : `pressure ${LEVELS[level]}`;
    if (level > 0 && engines.signal) pressure.textContent += ` (${engines.signal.replaceAll("_", " ")})`;
  }

  drawReplicas(replicas, last) {
    const rows = replicas.map(([name, replica]) => {
      const sample = last?.replicas[name] ?? null;
      const row = element("tr", replica.stale ? "stale" : "");
      const head = element("th", "", short(name));
      head.scope = "row";
      head.title = name;
      if (replica.stale) head.append(element("small", "", heard(replica.heard_s)));
      row.append(head, element("td", "hits", percent(sample?.hit_ratio)), this.meter(sample?.kv_usage_ratio ?? null));
      row.append(element("td", "number", count(sample?.running_requests)));
      row.append(element("td", "number", count(sample?.waiting_requests)));
      row.append(element("td", "number wide", count(sample?.queued_prefill_tokens)));
      row.append(element("td", "number wide", rate(sample?.preemptions_per_s)));
      return row;
    });
    replaceIfChanged(this.find("tbody"), rows);
    this.find(".replicas").hidden = !rows.length;
  }

  // A bar with a tick at each watermark; what it says is also in words.
  meter(ratio) {
    const cell = element("td", "kv");
    cell.append(element("span", "", percent(ratio)));
    if (ratio !== null) {
      const bar = element("i", "meter");
      bar.setAttribute("aria-hidden", "true");
      const fill = element("b");
      fill.style.width = `${100 * Math.min(1, ratio)}%`;
      fill.dataset.over = Object.entries(this.marks).filter(([, mark]) => ratio >= mark).length;
      bar.append(fill);
      for (const mark of Object.values(this.marks)) {
        const tick = element("u");
        tick.style.left = `${100 * mark}%`;
        bar.append(tick);
      }
      cell.append(bar);
    }
    return cell;
  }
}

function heard(heard_s) {
  return heard_s === null ? "never heard" : `silent ${Math.round(heard_s)} s`;
}
