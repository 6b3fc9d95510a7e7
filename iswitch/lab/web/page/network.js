// The network as a picture: a tree, its root in the middle, or on the left where it is narrow.

import { html, mbit, share, svg } from "./format.js";

const NARROW = 640; // pixels
const MANY = 20; // leaves on a side, beyond which each has one line
const BOX = { width: 62, height: 26 };

/** Draw the nodes and links of a scene into a place. */
export function drawNetwork(place, scene) {
  const width = Math.max(place.clientWidth, 280);
  const narrow = width < NARROW;
  const below = new Map(scene.nodes.map((node) => [node.name, []]));
  const roots = [];
  for (const node of scene.nodes) {
    const above = node.above === null ? undefined : below.get(node.above);
    (above ?? roots).push(node);
  }
  const seen = new Set(scene.switches.map((one) => one.name));
  const leaves = (node) =>
    Math.max(1, below.get(node.name).reduce((sum, one) => sum + leaves(one), 0));
  const deep = (node) => 1 + Math.max(0, ...below.get(node.name).map(deep));
  const parts = { links: [], nodes: [] };
  let bottom = 0;

  for (const root of roots) {
    const children = below.get(root.name);
    const sides = narrow || children.length < 2 ? [children] : halves(children, leaves);
    const most = Math.max(...sides.map((side) => side.reduce((sum, one) => sum + leaves(one), 0)));
    const row = most > MANY ? 19 : 38;
    const height = Math.max(1, most) * row;
    const middle = bottom + height / 2;
    const center = sides.length === 2 ? width / 2 : BOX.width / 2 + 2;
    const levels = deep(root) - 1;
    const room = sides.length === 2 ? width / 2 : width;
    const labels = Math.min(room * (levels > 1 ? 0.4 : 0.55), 240);
    const step = levels ? Math.min(220, (room - labels - BOX.width / 2) / levels) : 0;
    sides.forEach((side, number) => {
      const turn = sides.length === 2 && number === 0 ? -1 : 1;
      const own = side.reduce((sum, one) => sum + leaves(one), 0) * row;
      let top = middle - own / 2;
      const put = (node, level, from) => {
        const size = leaves(node) * row;
        const at = { x: center + turn * step * level, y: top + size / 2 };
        parts.links.push(line(node, from, at));
        const start = top;
        for (const one of below.get(node.name)) put(one, level + 1, at);
        top = start + size;
        parts.nodes.push(drawn(node, at, turn, row, seen, narrow));
      };
      for (const one of side) put(one, 1, { x: center, y: middle });
    });
    parts.nodes.push(drawn(root, { x: center, y: middle }, 1, row, seen, narrow));
    bottom += height + 12;
  }
  const height = Math.max(bottom, 40);
  place.replaceChildren(
    scene.nodes.length
      ? svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": told(scene) },
        ...parts.links, ...parts.nodes)
      : html("p", { class: "faint" }, "no switch answers yet"),
  );
}

/** Split children in two, with about as many leaves on the left as on the right. */
function halves(children, leaves) {
  const all = children.reduce((sum, one) => sum + leaves(one), 0);
  const left = [];
  let sum = 0;
  while (left.length < children.length - 1 && sum + leaves(children[left.length]) / 2 <= all / 2) {
    sum += leaves(children[left.length]);
    left.push(children[left.length]);
  }
  return [left, children.slice(left.length)];
}

/** Say in a sentence what the picture shows. */
function told(scene) {
  const hosts = scene.nodes.filter((node) => node.kind === "host").length;
  const lossy = scene.nodes.filter((node) => node.link?.lossy.length).map((node) => node.name);
  const gone = scene.nodes.filter((node) => node.kind === "switch" && node.gone !== null);
  return `${scene.nodes.length - hosts} switches and ${hosts} hosts` +
    (lossy.length ? `; lossy links to ${lossy.join(", ")}` : "") +
    (gone.length ? `; lost: ${gone.map((node) => node.name).join(", ")}` : "");
}

const grade = (load) => (load === null ? "none" : load > 0.9 ? "high" : load > 0.7 ? "mid" : "low");

function line(node, from, to) {
  const { link } = node;
  const bend = (from.x + to.x) / 2;
  const lost = node.gone !== null || node.silent !== null;
  const kind = lost ? "gone" : link?.lossy.length ? `${grade(link.load)} lossy` : grade(link?.load ?? null);
  const path = svg("path", {
    d: `M${from.x},${from.y} C${bend},${from.y} ${bend},${to.y} ${to.x},${to.y}`,
    class: `link ${kind}`,
    "stroke-width": lost ? 2.5 : 2 + 5 * Math.min(link?.load ?? 0, 1),
    "data-to": node.name,
  });
  path.append(svg("title", {}, `${node.above} - ${node.name}: ${words(node).map(([text]) => text).join(", ") || "no figures"}`));
  return path;
}

/** What is to be said of a node: pairs of a text and a class. */
function words(node) {
  const { link } = node;
  const said = [];
  if (node.gone !== null) {
    return node.kind === "switch" ? [[`no answer for ${node.gone.toFixed(0)} s`, "bad"]] : [[`behind ${node.above}`, "bad"]];
  }
  if (node.silent !== null) said.push([`silent for ${node.silent.toFixed(0)} s`, "bad"]);
  const late = node.late ? [["late", "notable"]] : [];
  if (link === null) return [...said, ...late];
  const losses = link.lossy.filter((way) => way !== "way").map((way) => `${share(link[`lost_${way}`], 1)} ${way}`);
  if (losses.length) said.push([`loses ${losses.join(", ")}`, "bad"]);
  else if (link.lossy.length) said.push([`${link.again.toFixed(0)} again/s`, "bad"]);
  said.push(...late);
  if (link.load !== null) said.push([`load ${share(link.load)}`, link.load > 0.9 ? "bad" : ""]);
  else said.push([`${mbit(link.in)} Mbit/s`, ""]);
  return said;
}

function drawn(node, at, turn, row, seen, narrow) {
  const states = [node.kind];
  if (node.gone !== null || node.silent !== null) states.push("gone");
  if (node.late) states.push("late");
  if (node.kind === "switch" && node.gone === null && !seen.has(node.name)) states.push("unseen");
  const made = svg("g", { class: states.join(" "), "data-node": node.name });
  const said = words(node).slice(0, narrow ? 1 : undefined);
  if (node.kind === "switch") {
    const { width, height } = BOX;
    const short = node.name.length > 9 ? `${node.name.slice(0, 8)}…` : node.name || "switch";
    made.append(
      svg("title", {}, node.name),
      svg("rect", { class: "box", x: at.x - width / 2, y: at.y - height / 2, width, height, rx: 6 }),
      svg("text", { x: at.x, y: at.y + 4.5, "text-anchor": "middle" }, short),
    );
    const edge = at.x < width; // of the picture
    const text = svg("text", { class: "small", x: edge ? 2 : at.x, y: at.y + height / 2 + 12, "text-anchor": edge ? "start" : "middle" });
    append(text, said.filter(([, kind]) => kind));
    made.append(text);
    return made;
  }
  const side = turn > 0 ? "start" : "end";
  const x = at.x + turn * 12;
  const ranks = node.ranks.length ? ` rank ${node.ranks.join(", ")}` : "";
  made.append(svg("circle", { class: "dot", cx: at.x, cy: at.y, r: row < 30 ? 4.5 : 6 }));
  const name = svg("text", { x, y: row < 30 ? at.y + 4 : at.y - 1, "text-anchor": side }, node.name);
  name.append(svg("tspan", { class: "small" }, ranks));
  made.append(name);
  if (row < 30) append(name, said, "  ");
  else {
    const text = svg("text", { class: "small", x, y: at.y + 13, "text-anchor": side });
    append(text, said);
    made.append(text);
  }
  return made;
}

function append(text, said, before = "") {
  said.forEach(([word, kind], number) => {
    const gap = number ? " · " : before;
    text.append(svg("tspan", { class: `small ${kind}` }, gap + word));
  });
}
