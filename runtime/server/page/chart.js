// A line chart on a canvas: the last readings, one or two lines, a scale that fits.

const KEPT = 120;

export class Chart {
  /** `lines`: names of at most two lines; `format`: how a value is written. */
  constructor(parent, title, lines, format, most = 0) {
    this.lines = lines.map((name) => ({ name, values: [] }));
    this.format = format;
    this.most = most;
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("span");
    name.textContent = title;
    this.value = document.createElement("b");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    caption.append(name, this.value);
    figure.append(caption, this.canvas);
    parent.append(figure);
    this.title = title;
  }

  /** Add a reading; null leaves a gap. */
  push(...values) {
    values.forEach((value, at) => {
      const line = this.lines[at];
      line.values.push(value);
      if (line.values.length > KEPT) line.values.shift();
    });
    const shown = values.map((value) => (value === null ? "–" : this.format(value)));
    this.value.textContent = shown.join(" / ");
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.value.textContent}`);
    this.draw();
  }

  draw() {
    const scale = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const all = this.lines.flatMap((line) => line.values).filter((value) => value !== null);
    const top = Math.max(this.most, ...all, 1e-9) * 1.08;
    context.fillStyle = getComputedStyle(this.canvas).color;
    context.globalAlpha = 0.12;
    context.fillRect(0, height - 1, width, 1);
    context.fillRect(0, 0, width, 1);
    context.globalAlpha = 1;
    this.lines.forEach((line, at) => {
      context.strokeStyle = resolve(this.canvas, at ? "--second" : "--accent");
      context.lineWidth = 1.6;
      context.lineJoin = "round";
      context.beginPath();
      let isDown = false;
      line.values.forEach((value, place) => {
        if (value === null) { isDown = false; return; }
        const x = width - (line.values.length - 1 - place) * (width / (KEPT - 1));
        const y = height - 2 - (value / top) * (height - 4);
        if (isDown) context.lineTo(x, y);
        else context.moveTo(x, y);
        isDown = true;
      });
      context.stroke();
    });
  }
}

/** A colour variable as the browser sees it, light or dark. */
function resolve(canvas, variable) {
  canvas.style.color = `var(${variable})`;
  const found = getComputedStyle(canvas).color;
  canvas.style.color = "";
  return found;
}
