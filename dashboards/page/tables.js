// Requests, decisions, scaling events, prefixes.

import { element, replaceIfChanged } from "./dom.js";
import { clock, count, plain, rate, seconds, short } from "./words.js";

const SHOWN_DECISIONS = 12;
const SHOWN_EVENTS = 12;

function cell(className, text, small) {
  const made = element("td", className, text);
  if (small) made.append(element("small", "", small));
  return made;
}

function tag(path) {
  return element("span", `tag ${path}`, path);
}

function fill(table, rows) {
  replaceIfChanged(table.querySelector("tbody"), rows);
  table.hidden = !rows.length;
}

export function drawRequests(table, shown) {
  const last = shown[shown.length - 1]?.paths ?? null;
  const rows = ["hot", "warm", "cold"].map((path) => {
    const outcomes = {};
    for (const sample of shown) {
      for (const [outcome, times] of Object.entries(sample.paths?.[path].outcomes ?? {})) {
        outcomes[outcome] = (outcomes[outcome] ?? 0) + times;
      }
    }
    const { answered = 0, ...others } = outcomes;
    const why = Object.entries(others).sort((one, other) => other[1] - one[1]);
    const row = element("tr");
    row.dataset.path = path;
    const head = element("th");
    head.scope = "row";
    head.append(tag(path));
    const now = last?.[path] ?? null;
    row.append(head, cell("number", rate(now?.requests_per_s)), cell("number wide", seconds(now?.ttft_p50_s)));
    row.append(cell("number", seconds(now?.ttft_p95_s)), cell("number", count(answered)));
    row.append(cell("why", why.length ? why.map(([name, times]) => `${count(times)} × ${plain(name)}`).join(", ") : "none"));
    return row;
  });
  fill(table, rows);
}

export function drawDecisions(table, decisions) {
  const rows = decisions.slice(-SHOWN_DECISIONS).reverse().map(({ at_s, decision }) => {
    const row = element("tr");
    const path = element("td");
    path.append(tag(decision.path), element("small", "", plain(decision.reason)));
    const where = decision.admission === "home" ? "home" : `${plain(decision.admission)}, ${decision.engines} engines`;
    const waited = decision.waited_s > 0 ? `waited ${seconds(decision.waited_s)}` : "";
    const held = decision.replica ? `${count(decision.matched_tokens)} of ${count(decision.prompt_tokens)}` : "–";
    row.append(cell("time", clock(at_s)), path, cell("wide", where, waited));
    row.append(cell("wide", decision.replica ? short(decision.replica) : "–", plain(decision.routing)));
    row.append(cell("number wide", held), cell("number", seconds(decision.ttft_s)));
    row.append(cell(decision.outcome === "answered" ? "outcome" : "outcome other", plain(decision.outcome)));
    return row;
  });
  fill(table, rows);
}

export function drawScaling(list, events) {
  const rows = events.slice(-SHOWN_EVENTS).reverse().map(({ at_s, event }) => {
    const row = element("li");
    row.append(element("time", "", clock(at_s)), tag(event.engines));
    row.append(element("b", "", `${event.replicas_before} → ${event.replicas} replicas`), element("span", "", plain(event.reason)));
    return row;
  });
  replaceIfChanged(list, rows);
  list.hidden = !rows.length;
}

export function drawPrefixes(table, prefixes) {
  const rows = prefixes.map((prefix) => {
    const row = element("tr");
    const engines = element("td");
    engines.append(tag(prefix.engines));
    row.append(engines, cell("number", count(prefix.length_tokens)), cell("number", rate(prefix.requests)));
    row.append(cell("", prefix.salted ? "one key" : "everyone"));
    return row;
  });
  fill(table, rows);
}
