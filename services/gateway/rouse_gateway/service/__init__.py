"""The RPC handlers of the gateway's two services."""
