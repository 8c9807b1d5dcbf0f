{{- /* Adds a pool: its InferenceService and its autoscaler. The first one has the names of base. */ -}}
{{- define "pilotlight.pool" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $isFirst := .isFirst -}}
{{- $one := dict "items" list -}}
{{- include "pilotlight.read" (dict "root" $root "state" $one "glob" "base/pool/*.yaml") -}}
{{- range dict "engine-vllm" $pool.vllm "gpu" $pool.gpus "keda" $root.Values.autoscaler.externalScaler "node-cache" $pool.nodeCache "node-memory" $pool.nodeMemory "knative" $pool.knative | include "pilotlight.chosen" | fromJsonArray -}}
{{- include "pilotlight.component" (dict "root" $root "state" $one "name" .) -}}
{{- end -}}
{{- range $item := $one.items -}}
{{- if eq $item.kind "NetworkPolicy" -}}
{{- include "pilotlight.add" (dict "state" $.state "item" $item) -}}
{{- else if ne $item.kind "ConfigMap" -}}
{{- if not $isFirst }}{{ $_ := set $item.metadata "name" (printf "%s-%s" $item.metadata.name $pool.name) }}{{ end -}}
{{- if eq $item.kind "Deployment" -}}
{{- $_ := set $item.spec.selector.matchLabels "app.kubernetes.io/instance" $pool.name -}}
{{- $_ := set $item.spec.template.metadata.labels "app.kubernetes.io/instance" $pool.name -}}
{{- include "pilotlight.set" (dict "container" (first $item.spec.template.spec.containers) "name" "PILOTLIGHT_POOL" "value" $pool.name) -}}
{{- else if eq $item.kind "Role" -}}
{{- $_ := set (first $item.rules) "resourceNames" (list (printf "pool%s-predictor" (ternary "" (printf "-%s" $pool.name) $isFirst))) -}}
{{- else if eq $item.kind "Service" -}}
{{- $_ := set $item.spec.selector "app.kubernetes.io/instance" $pool.name -}}
{{- else if eq $item.kind "RoleBinding" -}}
{{- $_ := set $item.roleRef "name" $item.metadata.name -}}
{{- else -}}
{{- include "pilotlight.poolValues" (dict "root" $root "pool" $pool "item" $item) -}}
{{- end -}}
{{- include "pilotlight.add" (dict "state" $.state "item" $item) -}}
{{- end -}}
{{- end -}}
{{- include "pilotlight.tenants" . -}}
{{- end -}}

{{- /* A ConfigMap for each namespace in the texts `NAMESPACE=VALUES; …` of a pool's values. */ -}}
{{- define "pilotlight.tenants" -}}
{{- $pool := .pool -}}
{{- $everyone := .isFirst | ternary "everyone" (printf "everyone-%s" $pool.name) -}}
{{- $tenants := dict -}}
{{- range regexSplit "[\\s,;]+" (trim (default "*" $pool.namespaces)) -1 }}{{ $_ := set $tenants . (dict "namespace" .) }}{{ end -}}
{{- range $key, $text := dict "storage-prefixes" $pool.storagePrefixes "quotas" $pool.quotas -}}
{{- range regexSplit "[;\\n]" (default "" $text) -1 -}}
{{- with trim . -}}
{{- if not (contains "=" .) }}{{ fail (printf "pools: %s must be NAMESPACE=VALUES; …, was %q" $key .) }}{{ end -}}
{{- $part := splitn "=" 2 . -}}
{{- $name := trim $part._0 -}}
{{- $tenant := default (dict "namespace" $name "admit" "false") (get $tenants $name) -}}
{{- $_ := set $tenant $key (trim (printf "%s %s" (default "" (get $tenant $key)) $part._1)) -}}
{{- $_ := set $tenants $name $tenant -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $data := $tenants -}}
{{- $labels := dict "app.kubernetes.io/part-of" "pilotlight" "pilotlight.io/tenant-of" $pool.name -}}
{{- $metadata := dict "name" (eq $name "*" | ternary $everyone (printf "tenant-%s.%s" $pool.name $name)) "labels" $labels -}}
{{- include "pilotlight.add" (dict "state" $.state "item" (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $metadata "data" $data)) -}}
{{- end -}}
{{- end -}}

{{- /* What a pool's values change in its InferenceService. */ -}}
{{- define "pilotlight.poolValues" -}}
{{- $pool := .pool -}}
{{- $item := .item -}}
{{- $spec := $item.spec.predictor -}}
{{- $container := first $spec.containers -}}
{{- $_ := set $item.metadata.labels "pilotlight.io/pool" $pool.name -}}
{{- include "pilotlight.set" (dict "container" $container "name" "PILOTLIGHT_POOL" "value" $pool.name) -}}
{{- range $key := list "minReplicas" "maxReplicas" "deploymentStrategy" -}}
{{- if hasKey $pool $key }}{{ $_ := set $spec $key (get $pool $key) }}{{ end -}}
{{- end -}}
{{- range $container.envFrom }}{{ $_ := set .secretRef "name" $.root.Values.storageSecret }}{{ end -}}
{{- if $pool.gpus }}{{ $_ := set $container.resources.limits "nvidia.com/gpu" (toString $pool.gpus) }}{{ end -}}
{{- with $pool.tiers }}{{ include "pilotlight.tiers" (dict "pod" $spec "tiers" . "isGpu" (not (empty $pool.gpus))) }}{{ end -}}
{{- include "pilotlight.workload" (dict "pod" $spec "metadata" $item.metadata "values" $pool) -}}
{{- end -}}

{{- /* Makes the InferenceService of a pool, in place, the Deployment that KServe would make of it. */ -}}
{{- define "pilotlight.withoutKserve" -}}
{{- $item := .item -}}
{{- $pod := $item.spec.predictor -}}
{{- $labels := dict "pilotlight.io/pool" (get $item.metadata.labels "pilotlight.io/pool") -}}
{{- $all := merge (dict "app.kubernetes.io/name" "pilotlight-pool") $labels -}}
{{- $kept := dict -}}
{{- range $key, $text := $item.metadata.annotations }}{{ if not (hasPrefix "serving.kserve.io/" $key) }}{{ $_ := set $kept $key $text }}{{ end }}{{ end -}}
{{- $bounds := dict "pilotlight.io/min-replicas" (toString $pod.minReplicas) "pilotlight.io/max-replicas" (toString $pod.maxReplicas) -}}
{{- $metadata := dict "labels" $all -}}
{{- if $kept }}{{ $_ := set $metadata "annotations" $kept }}{{ end -}}
{{- $template := dict "metadata" $metadata "spec" (omit $pod "minReplicas" "maxReplicas" "deploymentStrategy") -}}
{{- $spec := dict "selector" (dict "matchLabels" $all) "strategy" $pod.deploymentStrategy "template" $template -}}
{{- $own := dict "name" (printf "%s-predictor" $item.metadata.name) "labels" $labels "annotations" (merge $bounds $item.metadata.annotations) -}}
{{- $_ := mergeOverwrite $item (dict "apiVersion" "apps/v1" "kind" "Deployment" "metadata" $own) -}}
{{- $_ := set $item.metadata "labels" $labels -}}
{{- $_ := set $item "spec" $spec -}}
{{- end -}}
