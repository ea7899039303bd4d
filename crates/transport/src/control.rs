//! The control plane: aborts, heartbeats and agreement between ranks.
