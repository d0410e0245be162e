//! An index with several images for one architecture, laid out like AlmaLinux's: `amd64`, `arm64` and `amd64/v2`, whose
//! plain amd64 requires x86-64-v3.

use std::fs;

use anyhow::{Result, ensure};
use berth_api::keys;
use berth_tests::cluster::{LONG, Part};
use berth_tests::hosts::sim::SimHost;
use serde_json::json;

const V2: &str = "flags\t\t: fpu sse sse2 lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm\n";
const V3: &str = "flags\t\t: fpu sse sse2 lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm fma movbe xsave avx f16c abm bmi1 \
                  avx2 bmi2\n";

async fn cpu(host: &SimHost, flags: &str) -> Result<()> {
    fs::write(host.root().join("proc/cpuinfo"), flags)?;
    host.stop_agent().await;
    host.start_agent();
    Ok(())
}

/// Three nodes: CPU level v2, CPU level v3, and a CPU whose level cannot be read.
pub async fn each_node_gets_the_image_that_its_cpu_runs(part: &Part<'_>) -> Result<()> {
    cpu(part.host(1), V2).await?;
    cpu(part.host(2), V3).await?;
    let platforms = [("amd64", None), ("arm64", None), ("amd64", Some("v2"))];
    let images = part.cluster.publish_platforms("1.0.0-variants", &platforms).await?;
    let (plain, lesser) = (&images[0], &images[2]);
    let boots = part.boots(3);
    part.pool(plain, json!({ "maxUnavailable": 1 })).await?;
    part.until_run(lesser, &[1], LONG).await?;
    part.until_run(plain, &[2], LONG).await?;
    let words = "it is unknown which of them the node's CPU runs";
    part.until_waiting(&[part.node(3)], "CpuLevelUnknown", words).await?;
    let image = part.bootc_node(part.node(3)).await?.spec.image;
    ensure!(image.is_none(), "node 3's CPU may not run {image:?}");
    part.is_untouched(3, boots).await?;
    part.label(part.node(3), keys::LABEL_VARIANT, Some("v2")).await?;
    part.until_run(lesser, &[3], LONG).await
}
