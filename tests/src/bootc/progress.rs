//! Events of bootc's progress protocol, which are lines of JSON.

use serde_json::{Value, json};

/// The first event.
pub fn start() -> Value {
    json!({ "type": "Start", "version": "0.1.0" })
}

/// Event of the import of a pulled image. The import is a task with one step.
pub fn importing(digest: &str, done: usize) -> Value {
    json!({
        "type": "ProgressSteps", "task": "importing", "description": "Importing Image", "id": digest,
        "stepsCached": 0, "steps": done, "stepsTotal": 1, "subtasks": [],
    })
}

/// Parts of a staging: name, description and ID.
const PARTS: [[&str; 3]; 4] = [
    ["merging", "Merging Image", "fetching"],
    ["deploying", "Deploying Image", "deploying"],
    ["bound_images", "Pulling Bound Images", "bound_images"],
    ["cleanup", "Removing old images", "cleanup"],
];

/// Event of a staging with `done` of its four parts completed. The image is staged after the second part.
pub fn staging(digest: &str, done: usize) -> Value {
    let mut subtasks = vec![];
    for (number, [name, description, id]) in PARTS.iter().enumerate().take(done + 1) {
        let completed = number < done;
        subtasks.push(json!({ "subtask": name, "description": description, "id": id, "completed": completed }));
    }
    // bootc does not count the deployment as a step.
    let steps = done - usize::from(done > 1);
    json!({
        "type": "ProgressSteps", "task": "staging", "description": "Deploying Image", "id": digest,
        "stepsCached": 0, "steps": steps, "stepsTotal": 3, "subtasks": subtasks,
    })
}

/// Counters of a pull.
#[derive(Debug)]
pub struct Pull {
    digest: String,
    bytes_cached: u64,
    bytes_total: u64,
    bytes: u64,
    steps_cached: usize,
    steps_total: usize,
    steps: usize,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    id: String,
    bytes: u64,
    total: u64,
}

impl Pull {
    /// Begins the pull of an image, given the sizes of its layers that are already on the host and of the missing ones.
    pub fn new(digest: &str, cached: &[u64], missing: &[u64]) -> Self {
        Self {
            digest: digest.to_owned(),
            bytes_cached: cached.iter().sum(),
            bytes_total: missing.iter().sum(),
            bytes: 0,
            steps_cached: cached.len(),
            steps_total: missing.len(),
            steps: 0,
            layers: vec![],
        }
    }

    /// Begins a layer of this size. Its ID is the beginning of its digest.
    pub fn begin(&mut self, digest: &str, total: u64) {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        let id = hex.chars().take(21).collect();
        self.layers.push(Layer { id, bytes: 0, total });
    }

    /// Counts bytes of the layer.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if let Some(last) = self.layers.last_mut() {
            last.bytes += bytes;
        }
    }

    /// Ends the layer.
    pub fn end(&mut self) {
        self.steps += 1;
    }

    /// State of the pull.
    pub fn event(&self) -> Value {
        let mut subtasks = vec![];
        for Layer { id, bytes, total } in &self.layers {
            subtasks.push(json!({
                "subtask": "layer", "description": format!("Derived Layer: {id}"), "id": id,
                "bytesCached": 0, "bytes": bytes, "bytesTotal": total,
            }));
        }
        json!({
            "type": "ProgressBytes", "task": "pulling", "description": format!("Pulling Image: {}", self.digest),
            "id": self.digest, "bytesCached": self.bytes_cached, "bytes": self.bytes, "bytesTotal": self.bytes_total,
            "stepsCached": self.steps_cached, "steps": self.steps, "stepsTotal": self.steps_total, "subtasks": subtasks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_only_what_is_fetched() {
        let mut pull = Pull::new("sha256:9", &[100], &[10, 5]);
        pull.begin(&format!("sha256:{}", "2".repeat(64)), 10);
        pull.add(4);
        let event = pull.event();
        assert_eq!(event["bytesCached"], 100);
        assert_eq!(event["bytesTotal"], 15);
        assert_eq!(event["bytes"], 4);
        assert_eq!(event["steps"], 0);
        assert_eq!(event["stepsCached"], 1);
        assert_eq!(event["subtasks"][0]["id"], "222222222222222222222");
        pull.add(6);
        pull.end();
        assert_eq!(pull.event()["steps"], 1);
        assert_eq!(pull.event()["subtasks"][0]["bytes"], 10);
    }
}
