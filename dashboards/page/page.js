// The live page: takes the server's updates, draws them. Values come from the update as they are; nothing is guessed.

import { History } from "./history.js";
import { PathCard } from "./path_card.js";
import { Stream } from "./stream.js";
import { drawDecisions, drawPrefixes, drawRequests, drawScaling } from "./tables.js";
import { condition, LEVELS, percent } from "./words.js";

const KEY = "kvpulse-key";
const THEME = "kvpulse-theme";
const SIGNS = { collapsed: "⬣ ", low: "▼ ", unknown: "◌ " };
const RANK = ["steady", "idle", "unknown", "low", "collapsed"];

const byId = (id) => document.getElementById(id);
const history = new History();
const cards = new Map();
let settings = null;
let connection = "connecting";

function draw() {
  if (settings === null || history.latest === null) return;
  const span = Number(document.querySelector("#window input:checked").value);
  const shown = history.within(span);
  for (const [engines, card] of cards) card.draw(history, shown, span);
  drawRequests(byId("requests"), shown);
  drawVerdict();
}

function drawAll() {
  draw();
  drawDecisions(byId("decisions"), history.decisions);
  drawScaling(byId("scaling"), history.scaling);
  drawPrefixes(byId("prefixes"), history.latest.prefixes);
}

// The worst there is, in one sentence. Screen readers hear it when it changes, so it holds no number that always moves.
function drawVerdict() {
  const { conditions, ingresses } = history.latest;
  const [engines, now] = Object.entries(conditions).reduce((one, other) =>
    RANK.indexOf(other[1].health) > RANK.indexOf(one[1].health) ? other : one);
  let health = now.health;
  const sentences = [];
  if (connection !== "live") sentences.push("What you see is old: the page hears nothing from the board.");
  const alike = Object.entries(conditions).filter(([, { health: each }]) => each === now.health);
  const named = now.health === "steady" ? alike.slice(0, 1) : alike; // whose sentence speaks of both
  sentences.push(...named.map(([name, each]) => condition(name, each)));
  const pressed = Object.entries(history.last?.engines ?? {}).filter(([, sample]) => (sample.level ?? 0) > 0);
  const levels = new Set(pressed.map(([, { level }]) => level));
  for (const level of levels) {
    const names = pressed.filter(([, sample]) => sample.level === level).map(([engines]) => engines);
    sentences.push(`The ${names.join(" and ")} engines are under pressure: ${LEVELS[level]}.`);
  }
  const stale = Object.values(history.latest.replicas).filter((replica) => replica.stale).length;
  if (stale) sentences.push(`${stale} ${stale === 1 ? "replica is" : "replicas are"} silent.`);
  if (ingresses === 0) sentences.push("No ingress reports: requests and queues are unknown.");
  if ((health === "steady" || health === "idle") && (pressed.length || stale)) health = "low";
  if (connection !== "live") health = "unknown";
  const verdict = byId("verdict");
  verdict.dataset.health = health;
  verdict.querySelector("use").setAttribute("href", `#shape-${health}`);
  const words = sentences.join(" ");
  if (verdict.lastElementChild.textContent !== words) verdict.lastElementChild.textContent = words;
  document.title = `${SIGNS[health] ?? ""}${percent(now.hit_ratio)} ${engines} · KVPulse`;
}

function setConnection(state, words) {
  connection = state;
  const shown = byId("connection");
  shown.dataset.state = state;
  if (shown.lastElementChild.textContent !== words) shown.lastElementChild.textContent = words;
  if (history.latest !== null) drawVerdict();
}

function configure(told) {
  if (settings === null) {
    settings = told;
    byId("model").textContent = told.model;
    for (const engines of ["hot", "cold"]) {
      cards.set(engines, new PathCard(engines, told, byId("path-card"), byId("paths")));
    }
  }
}

const stream = new Stream("pulse/events", {
  event(name, data) {
    if (name === "settings") configure(data);
    if (name === "away") setConnection("away", "board away, requests still flow");
    if (name === "pulse") {
      history.take(data);
      setConnection("live", "live");
      drawAll();
    }
  },
  state: setConnection,
  refused(status, message) {
    sessionStorage.removeItem(KEY);
    setConnection("locked", "key needed");
    byId("login").hidden = false;
    byId("login-error").textContent = stream.key ? message : "";
    byId("key").focus();
  },
});

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  sessionStorage.setItem(KEY, key);
  byId("key").value = "";
  byId("login").hidden = true;
  byId("main").focus();
  setConnection("connecting", "connecting");
  stream.start(key);
});

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

const preferred = matchMedia("(prefers-color-scheme: dark)");
const chosen = localStorage.getItem(THEME);
setTheme(chosen === null ? preferred.matches : chosen === "dark");
preferred.addEventListener("change", (event) => {
  if (localStorage.getItem(THEME) === null) setTheme(event.matches);
});
byId("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme !== "dark";
  localStorage.setItem(THEME, dark ? "dark" : "light");
  setTheme(dark);
});
byId("window").addEventListener("change", draw);
setInterval(draw, 1000); // time goes on while nothing is heard

stream.start(sessionStorage.getItem(KEY));
