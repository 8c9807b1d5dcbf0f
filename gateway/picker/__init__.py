"""The endpoint picker of Gateway API's inference extension: Envoy asks, and sends the requests.

Protocol: the extension's proposal 004 over Envoy's external processing (`ext_proc`). Each stream is
a client's request of the application; its connection to the pod is Envoy's.
"""
