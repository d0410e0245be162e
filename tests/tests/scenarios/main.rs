//! Every scenario that needs no root, a module per subject. Unless a module says otherwise, the control plane, the
//! registry, the controller and the agents are real, and the hosts are simulated. All are in a single program, so that
//! a long scenario does not delay the others.

mod admin;
mod agent_backend;
mod agent_host;
mod api_validation;
mod boot_images;
mod capacity;
mod controller_reports;
mod controlplane;
mod docs;
mod drain;
mod drain_settings;
mod false_reports;
mod firstboot;
mod fleet;
mod gates;
mod gitops;
mod health;
mod images;
mod implausible;
mod liars;
mod manifests;
mod matrix;
mod monitoring;
mod one_host;
mod outside;
mod policies;
mod preview;
mod provisioning;
mod quorum;
mod readyz;
mod refusal;
mod registry_access;
mod roll_forward;
mod rollout_sim;
mod said;
mod samples;
mod scripts;
mod sim_host;
mod sim_kubelet;
mod sim_rpm_ostree;
mod soak;
mod steps;
mod units;
mod variants;
