new EventSource("/api/events").addEventListener("state", (event) => { document.body.textContent = event.data; });
