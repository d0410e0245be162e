//! Every scenario on real hosts. They share the bridges and disks of the machine: one at a time.

mod agent_host;
mod dashboard;
mod firstboot;
mod host;
mod newcomer;
mod one_host;
mod overlays;
mod packages;
mod rollout;
mod rpm_ostree;
mod service;
mod uninstall;
