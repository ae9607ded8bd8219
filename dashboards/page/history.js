// What the page knows: the last ten minutes of samples, decisions and scaling events, merged from the server's updates.

const KEPT_S = 600;
const KEPT_DECISIONS = 200;

function named(columns, values) {
  return values === null ? null : Object.fromEntries(columns.map((name, at) => [name, values[at]]));
}

function namedAll(columns, entries) {
  return entries === null
    ? null
    : Object.fromEntries(Object.entries(entries).map(([key, values]) => [key, named(columns, values)]));
}

export class History {
  constructor() {
    this.samples = [];
    this.decisions = [];
    this.scaling = [];
    this.latest = null; // the last update
    this.heardAt = 0; // by performance.now()
  }

  // After a restart of the server its history begins anew: what was seen before stays, and what lies between is a gap.
  take(update) {
    const fresh = update.samples.map((sample) => ({
      at_s: sample.at_s,
      engines: namedAll(update.columns.engines, sample.engines),
      replicas: namedAll(update.columns.replicas, sample.replicas),
      paths: namedAll(update.columns.paths, sample.paths),
    }));
    if (fresh.length) {
      this.samples = this.samples.filter((sample) => sample.at_s < fresh[0].at_s).concat(fresh);
    }
    const oldest = update.at_s - KEPT_S;
    this.samples = this.samples.filter((sample) => sample.at_s >= oldest);
    this.decisions = merged(this.decisions, update.decisions, update.whole);
    this.scaling = merged(this.scaling, update.scaling, update.whole);
    this.latest = update;
    this.heardAt = performance.now();
  }

  get now_s() {
    return this.latest === null ? 0 : this.latest.at_s + (performance.now() - this.heardAt) / 1000;
  }

  get last() {
    return this.samples[this.samples.length - 1] ?? null;
  }

  within(window_s) {
    const from = this.now_s - window_s;
    return this.samples.filter((sample) => sample.at_s >= from);
  }
}

function merged(known, told, whole) {
  const last = whole || !known.length ? 0 : known[known.length - 1].number;
  return (whole ? [] : known).concat(told.filter((one) => one.number > last)).slice(-KEPT_DECISIONS);
}
