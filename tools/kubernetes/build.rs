// SPDX-License-Identifier: GPL-2.0-or-later
//! Compiles the interfaces of the kubelet, which vm/fermatavm/kubernetes.py fetches.

#![allow(clippy::print_stdout, reason = "cargo reads the lines")]

use std::path::PathBuf;

const VARIABLE: &str = "FERMATA_PROTOS";
const FILES: [&str; 4] = [
    "deviceplugin/v1beta1/api.proto",
    "dra/v1/api.proto",
    "dra-health/v1alpha1/api.proto",
    "pluginregistration/v1/api.proto",
];

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!(
            "cargo::error={VARIABLE} does not name the folder of the kubelet's .proto files: build by `make kubernetes`"
        );
        return;
    };
    for file in FILES {
        println!("cargo::rerun-if-changed={}", folder.join(file).display());
    }
    let files = protox::compile(FILES, [folder]);
    let compiled = files.map(|files| tonic_build::configure().compile_fds(files));
    match compiled {
        Ok(Ok(())) => {}
        Ok(Err(error)) => println!("cargo::error={error}"),
        Err(error) => println!("cargo::error={error}"),
    }
}
