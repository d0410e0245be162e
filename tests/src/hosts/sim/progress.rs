//! Progress lines of bootc.

use serde_json::json;

/// Progress lines of a pull, each with its quarter of the pull's time.
pub(super) fn pulling(digest: &str, size: u64, padding: usize) -> Vec<(u32, String)> {
    let subtasks = json!([{ "subtask": "layer", "id": "0".repeat(padding) }]);
    let line = |quarter: u32| {
        let bytes = size / 4 * u64::from(quarter);
        json!({
            "type": "ProgressBytes", "task": "pulling", "description": "Pulling Image", "id": digest,
            "bytesCached": 0, "bytes": bytes, "bytesTotal": size,
            "stepsCached": 0, "steps": quarter, "stepsTotal": 4, "subtasks": subtasks,
        })
    };
    let start = (0, json!({"type": "Start", "version": "0.1.0"}).to_string());
    std::iter::once(start)
        .chain((0..4).map(|quarter| (quarter, line(quarter).to_string())))
        .collect()
}

/// Progress of a staging after this many of three steps. The image is staged after the first one.
pub(super) fn staging(digest: &str, steps: u32) -> String {
    let part =
        |name: &str, completed: bool| json!({"subtask": name, "description": "", "id": name, "completed": completed});
    json!({
        "type": "ProgressSteps", "task": "staging", "description": "Deploying Image", "id": digest,
        "stepsCached": 0, "steps": steps, "stepsTotal": 3,
        "subtasks": [part("merging", true), part("deploying", true), part("bound_images", steps > 1)],
    })
    .to_string()
}
