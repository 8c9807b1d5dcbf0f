{{- /* What the chart's values change in an object, in place. */ -}}

{{- /* The image for one of the manifests: its registry, tag or digest are values. */ -}}
{{- define "pilotlight.image" -}}
{{- $images := .root.Values.images -}}
{{- $short := regexFind "[a-z-]+$" (first (splitList ":" .name)) -}}
{{- if hasPrefix "registry.invalid/pilotlight/" .name -}}
{{- $name := printf "%s/%s" (trimSuffix "/" $images.registry) $short -}}
{{- with get $images.digests $short }}{{ $name }}@{{ . }}{{ else }}{{ $name }}:{{ default .root.Chart.AppVersion $images.tag }}{{ end -}}
{{- else if eq $short "redis" -}}
{{- $images.redis -}}
{{- else -}}
{{- .name -}}
{{- end -}}
{{- end -}}

{{- /* Sets a variable of a container. */ -}}
{{- define "pilotlight.setEnv" -}}
{{- $kept := list -}}
{{- $variable := .variable -}}
{{- $isThere := false -}}
{{- range .container.env -}}
{{- if eq .name $variable.name }}{{ $kept = append $kept $variable }}{{ $isThere = true -}}
{{- else }}{{ $kept = append $kept . }}{{ end -}}
{{- end -}}
{{- if not $isThere }}{{ $kept = append $kept $variable }}{{ end -}}
{{- $_ := set .container "env" $kept -}}
{{- end -}}

{{- define "pilotlight.set" -}}
{{- include "pilotlight.setEnv" (dict "container" .container "variable" (dict "name" .name "value" (toString .value))) -}}
{{- end -}}

{{- /* Where the pods of a Deployment or a pool run, and with what. A value that is given and empty
switches off what the manifests have. */ -}}
{{- define "pilotlight.workload" -}}
{{- $container := first .pod.containers -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" -}}
{{- $value := get $.values $key -}}
{{- if $value }}{{ $_ := set $.pod $key $value }}{{ else if hasKey $.values $key }}{{ $_ := unset $.pod $key }}{{ end -}}
{{- end -}}
{{- with .values.resources }}{{ $_ := set $container "resources" (mergeOverwrite $container.resources .) }}{{ end -}}
{{- with .values.podAnnotations }}{{ $_ := set $.metadata "annotations" (merge (deepCopy .) (default dict $.metadata.annotations)) }}{{ end -}}
{{- range .values.extraEnv }}{{ include "pilotlight.setEnv" (dict "container" $container "variable" .) }}{{ end -}}
{{- end -}}

{{- /* Bytes of a quantity such as 8Gi. */ -}}
{{- define "pilotlight.bytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- mul (int64 (trimSuffix $unit .)) (get (dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) $unit) -}}
{{- end -}}

{{- /* Budgets of a pod's tiers, with the volumes, requests and limits that they need. */ -}}
{{- define "pilotlight.tiers" -}}
{{- $container := first .pod.containers -}}
{{- $bytes := dict -}}
{{- range $variable := list "MEMORY_BYTES" "HOST_BYTES" "DISK_BYTES" -}}
{{- $given := get $.tiers (get (dict "MEMORY_BYTES" "device" "HOST_BYTES" "host" "DISK_BYTES" "disk") $variable) -}}
{{- if $given }}{{ include "pilotlight.set" (dict "container" $container "name" (printf "PILOTLIGHT_%s" $variable) "value" (include "pilotlight.bytes" $given)) }}{{ end -}}
{{- range $container.env }}{{ if eq .name (printf "PILOTLIGHT_%s" $variable) }}{{ $_ := set $bytes $variable (int64 .value) }}{{ end }}{{ end -}}
{{- end -}}
{{- /* A pod needs 1 to 3 GiB beside its models, and 8 GiB beside a GPU, whose memory is not the node's. */ -}}
{{- $models := add $bytes.MEMORY_BYTES $bytes.HOST_BYTES -}}
{{- $_ := set $container.resources.requests "memory" (printf "%dMi" (add (div $models 1048576) (ternary 8192 1024 .isGpu))) -}}
{{- $_ := set $container.resources.limits "memory" (printf "%dMi" (add (div $models 1048576) (ternary 8192 3072 .isGpu))) -}}
{{- /* Files may be a fifth more than the budget while a model is fetched. */ -}}
{{- $disk := printf "%dMi" (div (mul 5 $bytes.DISK_BYTES) 4194304) -}}
{{- range .pod.volumes -}}
{{- if and (eq .name "shared-memory") .emptyDir }}{{ $_ := set .emptyDir "sizeLimit" (printf "%dMi" (max 64 (div $bytes.HOST_BYTES 1048576))) }}{{ end -}}
{{- if and (eq .name "cache") .emptyDir -}}
{{- $_ := set .emptyDir "sizeLimit" $disk -}}
{{- $_ := set $container.resources.requests "ephemeral-storage" $disk -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The gateway's address in the status of models. */ -}}
{{- define "pilotlight.url" -}}
{{- if .Values.gateway.url }}{{ trimSuffix "/" .Values.gateway.url -}}
{{- else if and .Values.ingress.enabled .Values.ingress.hosts }}{{ ternary "https" "http" (not (empty .Values.ingress.tls)) }}://{{ first .Values.ingress.hosts -}}
{{- else }}{{ ternary "https" "http" .Values.tls.enabled }}://pilotlight-gateway.{{ .Release.Namespace }}.svc.cluster.local{{ end -}}
{{- end -}}

{{- /* What every object gets: namespace, labels, images, pull secrets, the registry. */ -}}
{{- define "pilotlight.common" -}}
{{- $root := .root -}}
{{- $item := .item -}}
{{- $isCluster := or (hasPrefix "Cluster" $item.kind) (has $item.kind (list "APIService" "CustomResourceDefinition" "MutatingWebhookConfiguration" "ValidatingWebhookConfiguration" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding")) -}}
{{- if not $isCluster }}{{ $_ := set $item.metadata "namespace" $root.Release.Namespace }}{{ end -}}
{{- /* A pool's labels are its pods', whom a change of the chart's version is not to restart. */ -}}
{{- $labels := dict "app.kubernetes.io/part-of" "pilotlight" "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- if ne $item.kind "InferenceService" -}}
{{- $_ := set $labels "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- end -}}
{{- $_ := set $item.metadata "labels" (merge $labels (default dict $item.metadata.labels)) -}}
{{- if and (hasPrefix "ValidatingAdmissionPolicy" $item.kind) (ne $root.Release.Namespace "pilotlight") -}}
{{- $_ := set $item.metadata "name" (printf "%s-%s" $item.metadata.name $root.Release.Namespace) -}}
{{- if $item.spec.policyName }}{{ $_ := set $item.spec "policyName" $item.metadata.name }}{{ end -}}
{{- end -}}
{{- range $item.subjects }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end -}}
{{- range $item.webhooks }}{{ $_ := set .clientConfig.service "namespace" $root.Release.Namespace }}{{ end -}}
{{- if eq $item.kind "APIService" }}{{ $_ := set $item.spec.service "namespace" $root.Release.Namespace }}{{ end -}}
{{- $pod := dict -}}
{{- if has $item.kind (list "Deployment" "Job") }}{{ $pod = $item.spec.template.spec }}{{ end -}}
{{- if eq $item.kind "InferenceService" }}{{ $pod = $item.spec.predictor }}{{ end -}}
{{- if eq $item.kind "ClusterServingRuntime" }}{{ $pod = $item.spec }}{{ end -}}
{{- $isOwn := ne $item.kind "ClusterServingRuntime" -}}
{{- range concat (default list $pod.initContainers) (default list $pod.containers) -}}
{{- $_ := set . "image" (include "pilotlight.image" (dict "root" $root "name" .image)) -}}
{{- $container := . -}}
{{- range .env -}}
{{- if and $isOwn (eq .name "PILOTLIGHT_REDIS_URL") $root.Values.redis.urlSecret -}}
{{- $from := dict "secretKeyRef" (dict "name" $root.Values.redis.urlSecret "key" "url") -}}
{{- include "pilotlight.setEnv" (dict "container" $container "variable" (dict "name" .name "valueFrom" $from)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $pod.containers $root.Values.images.pullSecrets -}}
{{- $names := list -}}
{{- range $root.Values.images.pullSecrets }}{{ $names = append $names (dict "name" .) }}{{ end -}}
{{- $_ := set $pod "imagePullSecrets" $names -}}
{{- end -}}
{{- end -}}

{{- /* An object as text. The manifests name their own namespace, and Prometheus'. */ -}}
{{- define "pilotlight.print" -}}
{{- include "pilotlight.common" . }}
---
{{ $text := regexReplaceAll "(pilotlight-(?:autoscaler|gateway|redis|workflows|webhook)\\.|kubectl -n |serviceaccount:|inject-ca-from: )pilotlight\\b" (toYaml .item) (printf "${1}%s" .root.Release.Namespace) -}}
{{- if eq .item.kind "NetworkPolicy" }}{{ $text = regexReplaceAll "(?m)(metadata\\.name: |- )monitoring$" $text (printf "${1}%s" .root.Values.monitoring.namespace) }}{{ end -}}
{{ $text }}
{{ end -}}
