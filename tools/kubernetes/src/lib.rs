// SPDX-License-Identifier: GPL-2.0-or-later
//! The interfaces of the kubelet, for the program and for the test that acts as the kubelet.

#![allow(
    missing_docs,
    clippy::pedantic,
    reason = "compiled from the kubelet's .proto files"
)]

/// How a device plugin registers, and the service of a device plugin.
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// The services of a DRA driver.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// How a DRA driver reports the health of devices.
pub mod health {
    tonic::include_proto!("v1alpha1");
}

/// How a DRA driver registers.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
