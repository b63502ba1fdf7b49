// Browsers forbid web workers in pages that are opened from disk. There, the search runs in a hidden
// frame instead. This replaces the script of the same name that zensical would load from a public server.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.(new MessageEvent("message", { data })))
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script")
        script.src = new URL(url, location)
        script.onload = resolve
        script.onerror = (event) => this.onerror?.(event)
        inside.document.documentElement.append(script)
      })
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
