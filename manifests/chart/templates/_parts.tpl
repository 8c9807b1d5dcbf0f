{{- /* What the values of the platform's parts change in an object, in place. */ -}}
{{- define "pilotlight.partValues" -}}
{{- $values := .root.Values -}}
{{- $item := .item -}}
{{- $part := regexReplaceAll "^pilotlight-(autoscaler)?.*$" $item.metadata.name "${1}" | default (trimPrefix "pilotlight-" $item.metadata.name) -}}
{{- $own := dict "gateway" $values.gateway "controller" $values.controller "autoscaler" $values.autoscaler "redis" $values.redis "workflows" $values.workflows "runtime" $values.runtime -}}
{{- $given := default dict (get $own $part) -}}
{{- if eq $item.kind "ServiceAccount" -}}
{{- with (default dict $given.serviceAccount).annotations }}{{ $_ := set $item.metadata "annotations" . }}{{ end -}}
{{- else if eq $item.kind "Deployment" -}}
{{- $pod := $item.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- if and (hasKey $given "replicas") (not $given.autoscaling) }}{{ $_ := set $item.spec "replicas" $given.replicas }}{{ end -}}
{{- if eq $part "gateway" -}}
{{- include "pilotlight.set" (dict "container" $container "name" "PILOTLIGHT_POOL" "value" (join "," .pools)) -}}
{{- $operators := list -}}
{{- range $values.auth.operators }}{{ $operators = append $operators (contains ":" . | ternary . (printf "%s:%s" $.root.Release.Namespace .)) }}{{ end -}}
{{- include "pilotlight.set" (dict "container" $container "name" "PILOTLIGHT_OPERATORS" "value" (join "," $operators)) -}}
{{- else if eq $part "workflows" -}}
{{- include "pilotlight.set" (dict "container" $container "name" "PILOTLIGHT_POOL" "value" (first .pools)) -}}
{{- else if eq $part "controller" -}}
{{- include "pilotlight.controller" (dict "root" .root "container" $container) -}}
{{- end -}}
{{- include "pilotlight.workload" (dict "pod" $pod "metadata" $item.spec.template.metadata "values" $given) -}}
{{- include "pilotlight.volumes" (dict "root" .root "volumes" $pod.volumes) -}}
{{- else if eq $item.kind "InferenceService" -}}
{{- include "pilotlight.volumes" (dict "root" .root "volumes" $item.spec.predictor.volumes) -}}
{{- else if eq $item.kind "Ingress" -}}
{{- include "pilotlight.ingress" (dict "item" $item "values" $values.ingress) -}}
{{- else if eq $item.kind "HTTPRoute" -}}
{{- with $values.httpRoute.annotations }}{{ $_ := set $item.metadata "annotations" . }}{{ end -}}
{{- with $values.httpRoute.parentRefs }}{{ $_ := set $item.spec "parentRefs" . }}{{ end -}}
{{- with $values.httpRoute.hostnames }}{{ $_ := set $item.spec "hostnames" . }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "pilotlight.controller" -}}
{{- $url := include "pilotlight.url" .root -}}
{{- $namespace := .root.Release.Namespace -}}
{{- if ne $url "http://pilotlight-gateway.pilotlight.svc.cluster.local" -}}
{{- include "pilotlight.set" (dict "container" .container "name" "PILOTLIGHT_URL" "value" (printf "%s/serving/{namespace}/{name}" $url)) -}}
{{- end -}}
{{- if ne $namespace "pilotlight" -}}
{{- include "pilotlight.set" (dict "container" .container "name" "PILOTLIGHT_ADDRESS" "value" (printf "http://pilotlight-gateway.%s.svc.cluster.local/serving/{namespace}/{name}" $namespace)) -}}
{{- end -}}
{{- if .root.Values.inferencePools.enabled -}}
{{- include "pilotlight.set" (dict "container" .container "name" "PILOTLIGHT_INGRESS_GATEWAYS" "value" (join "," .root.Values.inferencePools.ingressGateways)) -}}
{{- end -}}
{{- with .root.Values.controller.watchNamespaces -}}
{{- include "pilotlight.set" (dict "container" $.container "name" "PILOTLIGHT_WATCH_NAMESPACES" "value" (join "," (uniq (append . $namespace)))) -}}
{{- end -}}
{{- end -}}

{{- /* Secrets and ConfigMaps of the operator's own names. */ -}}
{{- define "pilotlight.volumes" -}}
{{- $values := .root.Values -}}
{{- range .volumes -}}
{{- if eq .name "api-keys" }}{{ $_ := set .secret "secretName" $values.auth.apiKeysSecret }}{{ end -}}
{{- if eq .name "token-issuers" }}{{ $_ := set .configMap "name" $values.auth.tokenIssuersConfigMap }}{{ end -}}
{{- if and (eq .name "tls") $values.tls.existingSecret }}{{ $_ := set .secret "secretName" $values.tls.existingSecret }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "pilotlight.ingress" -}}
{{- $spec := .item.spec -}}
{{- with .values.ingressClassName }}{{ $_ := set $spec "ingressClassName" . }}{{ end -}}
{{- with .values.annotations }}{{ $_ := set $.item.metadata "annotations" (merge (deepCopy .) $.item.metadata.annotations) }}{{ end -}}
{{- with .values.tls }}{{ $_ := set $spec "tls" . }}{{ end -}}
{{- $rules := list -}}
{{- range .values.hosts }}{{ $rules = append $rules (merge (dict "host" .) (first $spec.rules)) }}{{ end -}}
{{- with $rules }}{{ $_ := set $spec "rules" . }}{{ end -}}
{{- end -}}

{{- define "pilotlight.budget" -}}
{{- $spec := dict "maxUnavailable" 1 "selector" (dict "matchLabels" (dict .label .value)) -}}
{{- $_ := set .state "items" (append .state.items (dict "apiVersion" "policy/v1" "kind" "PodDisruptionBudget" "metadata" (dict "name" .name) "spec" $spec)) -}}
{{- end -}}
