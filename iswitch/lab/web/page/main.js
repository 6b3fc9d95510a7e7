// Takes what `iswitch web` sees, live or of a trace, and has it drawn.

import { html } from "./format.js";
import { drawNetwork } from "./network.js";
import { play } from "./player.js";
import { drawCurve, drawNow, drawRounds } from "./rounds.js";
import { drawTables } from "./tables.js";

const at = (id) => document.getElementById(id);
const places = Object.fromEntries(["jobs", "members", "links", "switches"].map((id) => [id, at(id)]));
const pause = at("pause");
let scene = null;
let paused = false;
let live = true; // rather than of a trace

/** Draw a scene; the `data-looks` of the page counts them. */
function draw(next) {
  scene = next;
  at("nothing").hidden = next.nothing === undefined;
  at("main").hidden = next.nothing !== undefined;
  document.body.dataset.looks = Number(document.body.dataset.looks ?? 0) + 1;
  if (next.nothing !== undefined) {
    at("nothing").textContent = next.nothing;
    at("title").textContent = document.title = "iswitch web";
    say("nothing runs");
    return;
  }
  at("title").textContent = next.title;
  document.title = `${next.findings.some((one) => one.stops) ? "! " : ""}${next.title}`;
  const switches = next.switches.length + Object.keys(next.gone).length;
  const clock = !live || next.time === null ? "" : `, ${new Date(1000 * next.time).toLocaleTimeString("en-GB")}`;
  say(`${switches} switch${switches === 1 ? "" : "es"}${clock}`);
  at("findings").replaceChildren(...found(next));
  drawNetwork(at("network"), next);
  drawNow(at("now"), next);
  drawRounds(at("rounds"), next);
  at("curve-part").hidden = !next.curve;
  if (next.curve) drawCurve(at("curve"), next.curve);
  drawTables(places, next);
}

function found({ findings, jobs, switches }) {
  if (findings.length) {
    return findings.map((one) => html("li", { class: one.stops ? "stops" : "costs" }, html("b", {}, one.what), one.told));
  }
  if (!switches.length) return [html("li", { class: "costs" }, "no switch answers yet")];
  const busy = jobs.some((job) => job.rate > 0);
  const text = busy ? "nothing is wrong" : "idle: no rounds; nothing is wrong";
  return [html("li", { class: "fine" }, text)];
}

function say(text) {
  if (at("state").textContent !== text) at("state").textContent = text;
}

function redraw() {
  if (scene) draw(scene);
}

/** Draw what is seen live, until the page is closed. */
function listen() {
  let held = null;
  const events = new EventSource("events");
  events.onmessage = (event) => {
    held = JSON.parse(event.data);
    if (!paused) draw(held);
  };
  events.onerror = () => say("iswitch web does not answer; trying again");
  const turn = () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused && held) draw(held);
  };
  pause.addEventListener("click", turn);
  document.addEventListener("keydown", (event) => {
    if (event.key === "p" && !event.ctrlKey && !event.metaKey && !event.altKey) turn();
  });
}

addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
const about = await (await fetch("about")).json();
if (about.trace) {
  live = false;
  pause.hidden = true;
  play(about.trace, draw);
} else listen();
