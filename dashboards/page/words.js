// Numbers and names as people read them. What is unknown is a dash, never a zero.

export const LEVELS = ["normal", "alert", "refusing long prompts", "shortening cold answers", "shedding"];
const HEALTH = { steady: "steady", low: "low", collapsed: "collapsed", idle: "idle", unknown: "unknown" };

const known = (value, words) => (value === null || value === undefined ? "–" : words(value));

export const percent = (ratio) => known(ratio, (value) => `${Math.round(100 * value)}\u00a0%`);
export const count = (value) => known(value, (number) => Math.round(number).toLocaleString("en-US"));
export const rate = (value) => known(value, (number) => (number < 10 ? number.toFixed(1) : count(number)));
export const seconds = (value) =>
  known(value, (s) => (s < 1 ? `${Math.round(1000 * s)}\u00a0ms` : `${s.toFixed(s < 10 ? 2 : 1)}\u00a0s`));
export const clock = (at_s) => new Date(1000 * at_s).toLocaleTimeString("en-GB");
export const plain = (name) => name.replaceAll("_", " ");
export const short = (replica) => replica.slice(0, 8);

// The state of one path's cache.
export function health({ health: state, usual_hit_ratio: usual }) {
  if (state === "collapsed") return `Collapsed, usually ${percent(usual)}`;
  if (state === "idle") return "Idle, no lookups";
  if (state === "unknown") return "Unknown, no replica reports";
  const name = HEALTH[state][0].toUpperCase() + HEALTH[state].slice(1);
  return usual === null ? name : `${name}, usually ${percent(usual)}`;
}

export function condition(engines, { health: state }) {
  return {
    steady: "Both caches hold what is asked of them.",
    idle: `The ${engines} cache is idle.`,
    unknown: `The ${engines} engines are silent: their cache is unknown.`,
    low: `The ${engines} cache is low on hits.`,
    collapsed: `The ${engines} cache has collapsed: it holds far less of what is asked than minutes ago.`,
  }[state];
}
