// The present round as a heat map, the newest rounds as bars, and a learning curve.

import { count, faint, html, ms, share, svg } from "./format.js";

const MANY = 16; // rows of a heat map, beyond which they are low
const NAMED = 4; // members that have a colour of their own

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** Draw what has come of the present rounds: a row for each member, a column for each part. */
export function drawNow(place, scene) {
  if (!scene.rounds.length) {
    place.replaceChildren(faint(scene.jobs.length ? "this job has no rounds, or its data plane does not tell" : "no job"));
    return;
  }
  const empty = rgb(colour("--cell"));
  const full = { came: rgb(colour("--accent")), complete: rgb(colour("--good")) };
  place.replaceChildren(...scene.rounds.flatMap((round) => {
    const { segments, complete } = round.parts;
    const total = segments.reduce((sum, one) => sum + one, 0);
    const grid = html("div", { class: round.members.length > MANY ? "heat many" : "heat", role: "table", "aria-label": `round ${round.round} at ${round.switch}` });
    const most = Math.max(0, ...round.members.map((one) => sum(one.came)));
    const rows = round.members.map((one) => [one.name, one.came ?? [], full.came]);
    for (const [name, parts, tone] of [...rows, ["sums", complete, full.complete]]) {
      const done = sum(parts);
      const canvas = html("canvas", { width: segments.length, height: 1, "aria-hidden": "true" });
      const pen = canvas.getContext("2d");
      const image = pen.createImageData(segments.length, 1);
      segments.forEach((size, at) => {
        const part = size ? (parts[at] ?? 0) / size : 0;
        for (let c = 0; c < 3; c++) image.data[4 * at + c] = Math.round(empty[c] + part * (tone[c] - empty[c]));
        image.data[4 * at + 3] = 255;
      });
      pen.putImageData(image, 0, 0);
      const behind = tone === full.came && done < 0.9 * most;
      grid.append(
        html("span", { class: "name", role: "rowheader", title: name }, name),
        canvas,
        html("span", { class: behind ? "share behind" : "share", role: "cell", title: `${count(done)} of ${count(total)} segments`, "data-share": `${round.switch} ${name}` }, share(total ? done / total : 0)),
      );
    }
    const where = scene.rounds.length > 1 ? `${round.switch}, ` : "";
    return [html("h3", {}, `${where}job ${round.job}, round ${count(round.round)}: ${count(total)} segments`), grid];
  }));
}

const sum = (values) => (values ?? []).reduce((all, one) => all + one, 0);

/** Draw the newest rounds: how long each took, and whose contribution was the last. */
export function drawRounds(place, scene) {
  const jobs = scene.jobs.filter((job) => job.recent.length);
  if (!jobs.length) {
    place.replaceChildren(faint("no round has ended yet"));
    return;
  }
  place.replaceChildren(...jobs.flatMap((job) => {
    const { recent } = job;
    const width = Math.max(place.clientWidth, 280), height = 150, left = 4, base = height - 16;
    const longest = Math.max(...recent.map((one) => one.seconds), 1e-9);
    const lasts = new Map();
    for (const { last } of recent) if (last !== null) lasts.set(last, (lasts.get(last) ?? 0) + 1);
    const named = [...lasts].sort((a, b) => b[1] - a[1]).slice(0, NAMED);
    const kind = new Map(named.map(([name], at) => [name, `c${at}`]));
    const step = (width - left) / Math.max(recent.length, 16);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `the last ${recent.length} rounds of job ${job.job}; the longest took ${ms(longest)}` });
    recent.forEach((one, at) => {
      const size = Math.max(1, (one.seconds / longest) * (base - 16));
      picture.append(svg("rect", { class: `bar ${kind.get(one.last) ?? ""}`, x: left + at * step, y: base - size, width: Math.max(1, step - 1.5), height: size, "data-round": one.round },
        svg("title", {}, `round ${count(one.round)}: ${ms(one.seconds)}, last: ${one.last ?? "a member that has left"}`)));
    });
    picture.append(
      svg("line", { class: "axis", x1: 0, x2: width, y1: base + 0.5, y2: base + 0.5 }),
      svg("text", { class: "small", x: left, y: 10 }, `${ms(longest)}, the longest of these`),
      svg("text", { class: "small", x: left, y: height - 3 }, `round ${count(recent[0].round)}`),
      svg("text", { class: "small", x: Math.max(140, left + recent.length * step), y: height - 3, "text-anchor": "end" }, `round ${count(recent.at(-1).round)}`),
    );
    const key = html("ul", { class: "legend", "aria-label": "Who was last" }, ...named.map(([name, often], at) =>
      html("li", { "data-last": name }, svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: `c${at}`, width: 10, height: 10, rx: 2 })),
        `${name} last in ${share(often / recent.length)}`)));
    return [html("h3", {}, `job ${job.job}: ${job.rate.toFixed(1)} rounds/s, first to last contribution ${job.spread === null ? "-" : ms(job.spread)}`), picture, key];
  }));
}

/** Draw a learning curve: the mean return over time. */
export function drawCurve(place, curve) {
  const { points, target, title } = curve;
  if (!points.length) {
    place.replaceChildren(faint(`${title}: no episode has ended yet`));
    return;
  }
  const width = Math.max(place.clientWidth, 280), height = 200, left = 44, base = height - 22;
  const values = points.map((one) => one[2]).concat(target === null ? [] : [target]);
  const low = Math.min(...values), high = Math.max(...values, low + 1e-9);
  const end = Math.max(points.at(-1)[0], 1e-9);
  const x = (seconds) => left + (seconds / end) * (width - left - 6);
  const y = (value) => base - ((value - low) / (high - low)) * (base - 14);
  const [seconds, iteration, value] = points.at(-1);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `mean return ${value.toFixed(1)} after ${count(iteration)} iterations` },
    svg("line", { class: "axis", x1: left, x2: width, y1: base, y2: base }),
    ...[low, high].map((each) => svg("text", { class: "small", x: left - 6, y: y(each) + 4, "text-anchor": "end" }, each.toFixed(0))),
    svg("text", { class: "small", x: left, y: height - 4 }, "0 s"),
    svg("text", { class: "small", x: width, y: height - 4, "text-anchor": "end" }, `${end.toFixed(0)} s`));
  if (target !== null) picture.append(svg("line", { class: "target", x1: left, x2: width, y1: y(target), y2: y(target) }, svg("title", {}, `target ${target}`)));
  picture.append(svg("polyline", { class: "curve", points: points.map((one) => `${x(one[0]).toFixed(1)},${y(one[2]).toFixed(1)}`).join(" ") }));
  place.replaceChildren(html("h3", {}, `${title}: mean return ${value.toFixed(1)} after ${count(iteration)} iterations, ${seconds.toFixed(0)} s`), picture);
}
