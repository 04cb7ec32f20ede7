// SPDX-License-Identifier: Apache-2.0
// A browser runs no worker that was opened from the disk: the search's runs in a frame instead.
const BEFORE = `
  postMessage = (data) => parent.postMessage(data, "*");
  importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
    const script = document.createElement("script");
    script.onload = resolve;
    script.src = url;
    document.body.append(script);
  })), Promise.resolve());
`;

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== inside) return;
        const told = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(told);
        this.onmessage?.(told);
      });
      inside.document.open(); // forgets who listens
      this.loaded = new Promise((resolve) => inside.addEventListener("load", resolve));
      inside.document.write("<!doctype html><body><script>" + BEFORE + `</script><script src="${url}"></script>`);
      inside.document.close();
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
