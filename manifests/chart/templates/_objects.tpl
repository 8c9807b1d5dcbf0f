{{- /* All objects of the manifest files of a glob, as a list under `items`. */ -}}
{{- define "pilotlight.read" -}}
{{- $items := list -}}
{{- range $path, $content := .root.Files.Glob .glob -}}
{{- range regexSplit "(?m)^---$" (toString $content) -1 -}}
{{- $item := fromYaml . -}}
{{- if $item.kind }}{{ $items = append $items $item }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "items" $items) -}}
{{- end -}}

{{- /* The image for a name of the manifests, such as pilotlight/runtime. */ -}}
{{- define "pilotlight.image" -}}
{{- $images := .root.Values.images -}}
{{- $short := .name | trimPrefix "pilotlight/" | splitList ":" | first -}}
{{- if hasPrefix "pilotlight/" .name -}}
{{- $name := printf "%s/%s" (default "pilotlight" $images.registry) $short -}}
{{- with get $images.digests $short }}{{ $name }}@{{ . }}{{ else }}{{ $name }}:{{ $images.tag }}{{ end -}}
{{- else -}}
{{- $images.redis -}}
{{- end -}}
{{- end -}}

{{- /* Sets a variable of a container, in place. */ -}}
{{- define "pilotlight.setEnv" -}}
{{- $kept := list -}}
{{- $name := .variable.name -}}
{{- $found := false -}}
{{- $variable := .variable -}}
{{- range .container.env -}}
{{- if eq .name $name }}{{ $kept = append $kept $variable }}{{ $found = true -}}
{{- else }}{{ $kept = append $kept . }}{{ end -}}
{{- end -}}
{{- if not $found }}{{ $kept = append $kept $variable }}{{ end -}}
{{- $_ := set .container "env" $kept -}}
{{- end -}}

{{- /* Adds what a component's patch of a Deployment adds to its container and volumes, in place. */ -}}
{{- define "pilotlight.patch" -}}
{{- $component := fromYaml (.root.Files.Get (printf "components/%s/kustomization.yaml" .component)) -}}
{{- $deployment := .deployment -}}
{{- range $component.patches -}}
{{- $target := .target -}}
{{- if and (eq $target.name $deployment.metadata.name) (eq $target.kind "Deployment") -}}
{{- $pod := $deployment.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $added := (fromYaml .patch).spec.template.spec -}}
{{- range $each := (first $added.containers).env -}}
{{- include "pilotlight.setEnv" (dict "container" $container "variable" $each) -}}
{{- end -}}
{{- range $key := list "ports" "volumeMounts" -}}
{{- $_ := set $container $key (concat (default list (get $container $key)) (default list (get (first $added.containers) $key))) -}}
{{- end -}}
{{- $_ := set $pod "volumes" (concat (default list $pod.volumes) (default list $added.volumes)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What every object gets, in place: namespace, label, images, pull secrets, the registry. */ -}}
{{- define "pilotlight.common" -}}
{{- $root := .root -}}
{{- $item := .item -}}
{{- $isCluster := has $item.kind (list "CustomResourceDefinition" "ClusterRole" "ClusterRoleBinding" "MutatingWebhookConfiguration" "ValidatingWebhookConfiguration" "ClusterServingRuntime") -}}
{{- if not $isCluster }}{{ $_ := set $item.metadata "namespace" $root.Release.Namespace }}{{ end -}}
{{- $labels := default dict $item.metadata.labels -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "pilotlight" -}}
{{- $_ := set $item.metadata "labels" $labels -}}
{{- range $item.subjects }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end -}}
{{- range $item.webhooks }}{{ $_ := set .clientConfig.service "namespace" $root.Release.Namespace }}{{ end -}}
{{- $pod := dict -}}
{{- if eq $item.kind "Deployment" }}{{ $pod = $item.spec.template.spec }}{{ end -}}
{{- if eq $item.kind "InferenceService" }}{{ $pod = $item.spec.predictor }}{{ end -}}
{{- range concat (default list $pod.initContainers) (default list $pod.containers) -}}
{{- $_ := set . "image" (include "pilotlight.image" (dict "root" $root "name" .image)) -}}
{{- $container := . -}}
{{- range .env -}}
{{- if eq .name "PILOTLIGHT_REDIS_URL" -}}
{{- if $root.Values.redis.urlSecret -}}
{{- $from := dict "secretKeyRef" (dict "name" $root.Values.redis.urlSecret "key" "url") -}}
{{- include "pilotlight.setEnv" (dict "container" $container "variable" (dict "name" .name "valueFrom" $from)) -}}
{{- else -}}
{{- $_ := set . "value" (replace "pilotlight-redis.pilotlight:" (printf "pilotlight-redis.%s:" $root.Release.Namespace) .value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $root.Values.images.pullSecrets -}}
{{- if $pod.containers -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names (dict "name" .) }}{{ end -}}
{{- $_ := set $pod "imagePullSecrets" $names -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pilotlight.poolNames" -}}
{{- $names := list -}}
{{- range .Values.pools }}{{ $names = append $names .name }}{{ end -}}
{{- join "," $names -}}
{{- end -}}
